// Rectified linear units with a fixed or a learnt slope.

template <typename T>
__global__ void relu_forward(const T* x, T* y, Wide<T> slope, int n) {
  const auto rectified = [=](int, Wide<T> value) { return value > 0 ? value : value * slope; };
  set_each(y, n, rectified, x);
}

template <typename T>
__global__ void relu_backward(const T* sign, const T* dy, T* dx, Wide<T> slope, int n) {
  const auto rectified = [=](int, Wide<T> sign_of, Wide<T> gradient) {
    return sign_of > 0 ? gradient : gradient * slope;
  };
  set_each(dx, n, rectified, sign, dy);
}

template <typename T>
__global__ void clipped_relu_forward(const T* x, T* y, Wide<T> slope, Wide<T> ceiling, int n) {
  const auto clipped = [=](int, Wide<T> at) {
    const Wide<T> result = at > 0 ? at : at * slope;
    return result > ceiling ? ceiling : result;
  };
  set_each(y, n, clipped, x);
}

template <typename T>
__global__ void clipped_relu_backward(const T* value, const T* dy, T* dx, Wide<T> slope,
                                      Wide<T> ceiling, int n) {
  const auto clipped = [=](int, Wide<T> at, Wide<T> gradient) {
    return at >= ceiling ? Wide<T>(0) : at > 0 ? gradient : gradient * slope;
  };
  set_each(dx, n, clipped, value, dy);
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
