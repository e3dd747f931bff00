// Functions of one element, and their gradients.

template <typename F> __device__ __forceinline__ F logistic(F x) { return 1 / (1 + exp(-x)); }

template <typename T>
__global__ void sigmoid_gradient(const T* y, const T* dy, T* dx, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(y, i);
    store(dx, i, load(dy, i) * (value - value * value));
  }
}

template <typename T>
__global__ void hard_sigmoid_forward(const T* x, T* y, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i) * Wide<T>(0.2) + Wide<T>(0.5);
    store(y, i, value < 0 ? Wide<T>(0) : value > 1 ? Wide<T>(1) : value);
  }
}

template <typename T>
__global__ void hard_sigmoid_gradient(const T* y, const T* dy, T* dx, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(y, i);
    store(dx, i, value > 0 && value < 1 ? load(dy, i) * Wide<T>(0.2) : Wide<T>(0));
  }
}

template <typename T>
__global__ void tanh_gradient(const T* y, const T* dy, T* dx, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(y, i);
    store(dx, i, load(dy, i) * (1 - value * value));
  }
}

template <typename T>
__global__ void power_forward(const T* x, T* y, Wide<T> power, Wide<T> scale, Wide<T> shift,
                              int n) {
  for EACH(i, n) {
    const Wide<T> base = load(x, i) * scale + shift;
    store(y, i, power == 1 ? base : power == 2 ? base * base : pow(base, power));
  }
}

template <typename T>
__global__ void power_gradient(const T* x, const T* dy, T* dx, Wide<T> power, Wide<T> scale,
                               Wide<T> shift, int n) {
  for EACH(i, n) {
    const Wide<T> base = load(x, i) * scale + shift;
    const Wide<T> slope = power == 2 ? base : pow(base, power - 1);
    store(dx, i, load(dy, i) * slope * (power * scale));
  }
}

template <typename T>
__global__ void absolute_gradient(const T* x, const T* dy, T* dx, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(dx, i, load(dy, i) * Wide<T>((value > 0) - (value < 0)));
  }
}

template <typename T>
__global__ void bnll_forward(const T* x, T* y, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(y, i, (value > 0 ? value : Wide<T>(0)) + log1p(exp(-fabs(value))));
  }
}

template <typename T>
__global__ void bnll_gradient(const T* x, const T* dy, T* dx, int n) {
  for EACH(i, n) store(dx, i, load(dy, i) * logistic(load(x, i)));
}

template <typename T>
__global__ void clip_gradient(const T* x, const T* dy, T* dx, Wide<T> lowest, Wide<T> highest,
                              int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(dx, i, value >= lowest && value <= highest ? load(dy, i) : Wide<T>(0));
  }
}

template <typename T>
__global__ void elu_forward(const T* x, T* y, Wide<T> alpha, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(y, i, value > 0 ? value : alpha * (exp(value) - 1));
  }
}

template <typename T>
__global__ void elu_gradient(const T* x, const T* dy, T* dx, Wide<T> alpha, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(dx, i, load(dy, i) * (value > 0 ? Wide<T>(1) : alpha * exp(value)));
  }
}

template <typename T>
__global__ void exp_forward(const T* x, T* y, Wide<T> scale, Wide<T> shift, int n) {
  for EACH(i, n) store(y, i, exp(load(x, i) * scale + shift));
}

template <typename T>
__global__ void exp_gradient(const T* y, const T* dy, T* dx, Wide<T> scale, int n) {
  for EACH(i, n) store(dx, i, load(dy, i) * load(y, i) * scale);
}

template <typename T>
__global__ void log_forward(const T* x, T* y, Wide<T> factor, Wide<T> scale, Wide<T> shift, int n) {
  for EACH(i, n) store(y, i, factor * log(load(x, i) * scale + shift));
}

template <typename T>
__global__ void log_gradient(const T* x, const T* dy, T* dx, Wide<T> factor, Wide<T> scale,
                             Wide<T> shift, int n) {
  for EACH(i, n) store(dx, i, load(dy, i) * (scale * factor / (load(x, i) * scale + shift)));
}

template <typename T>
__global__ void swish_forward(const T* x, T* y, Wide<T> beta, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(y, i, value * logistic(beta * value));
  }
}

template <typename T>
__global__ void swish_gradient(const T* x, const T* dy, T* dx, Wide<T> beta, int n) {
  for EACH(i, n) {
    const Wide<T> scaled = beta * load(x, i), gate = logistic(scaled);
    store(dx, i, load(dy, i) * (scaled * gate + gate * (1 - scaled * gate)));
  }
}
