// Rectified linear units with a fixed or a learnt slope.

template <typename T>
__global__ void relu_forward(const T* x, T* y, Wide<T> slope, int n) {
  set_each(y, n, [=](int i) {
    const Wide<T> value = load(x, i);
    return value > 0 ? value : value * slope;
  });
}

template <typename T>
__global__ void relu_backward(const T* sign, const T* dy, T* dx, Wide<T> slope, int n) {
  set_each(dx, n, [=](int i) {
    const Wide<T> gradient = load(dy, i);
    return load(sign, i) > 0 ? gradient : gradient * slope;
  });
}

template <typename T>
__global__ void clipped_relu_forward(const T* x, T* y, Wide<T> slope, Wide<T> ceiling, int n) {
  set_each(y, n, [=](int i) {
    const Wide<T> value = load(x, i), result = value > 0 ? value : value * slope;
    return result > ceiling ? ceiling : result;
  });
}

template <typename T>
__global__ void clipped_relu_backward(const T* value, const T* dy, T* dx, Wide<T> slope,
                                      Wide<T> ceiling, int n) {
  set_each(dx, n, [=](int i) {
    const Wide<T> at = load(value, i), gradient = load(dy, i);
    return at >= ceiling ? Wide<T>(0) : at > 0 ? gradient : gradient * slope;
  });
}

// Slopes are parameters, P: float where data is half.
template <typename T, typename P>
__global__ void prelu_forward(const T* sign, const T* x, T* y, const P* slope, int channels,
                              int inner, int n) {
  for EACH(i, n) {
    const Wide<T> value = load(x, i);
    store(y, i, load(sign, i) > 0 ? value : value * Wide<T>(slope[i / inner % channels]));
  }
}

// One block for each channel.
template <typename T>
__global__ void prelu_slope_gradient(const T* x, const T* dy, double* dslope, int outer,
                                     int channels, int inner) {
  for EACH_BLOCK(c, channels) {
    double sum = 0;
    for (int n = 0; n < outer; n++) {
      const long long row = (long long)(n * channels + c) * inner;
      Wide<T> part = 0;
      for EACH_THREAD(i, inner) {
        const Wide<T> value = load(x, row + i);
        if (value < 0) part += value * load(dy, row + i);
      }
      sum += part;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dslope[c] = sum;
  }
}
