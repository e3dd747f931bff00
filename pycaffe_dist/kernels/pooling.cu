// Pooling of planes (height, width) into (rows, columns): a thread for each element of the result,
// forward for each window and backward for each pixel, which gathers what its windows give it.

// Where the windows on one axis lie.
struct Windows {
  int kernel, stride, pad, size, count;

  __device__ int begin(int o) const { return max(0, o * stride - pad); }
  __device__ int end(int o) const { return min(size, o * stride - pad + kernel); }

  // The windows that cover pixel i: from `first` to before `last`.
  __device__ int first(int i) const {
    const int beyond = i + pad - kernel;
    return beyond < 0 ? 0 : divided(beyond) + 1;
  }
  __device__ int last(int i) const { return min(count, divided(i + pad) + 1); }

  // A window's size inside the padded image, as Caffe's divisor has it.
  __device__ int extent(int o) const {
    const int start = o * stride - pad;
    return max(1, min(start + kernel, size + pad) - start);
  }

  __device__ int divided(int n) const {
    return stride == 1 ? n : stride == 2 ? n >> 1 : n / stride;
  }
};

// Of equal maxima the first counts, a NaN beats everything, an empty window gives -inf and -1.
template <typename T, typename I>
__global__ void max_pool_forward(const T* x, T* y, I* mask, int height, int width, int rows,
                                 int columns, int kernel_h, int kernel_w, int stride_h,
                                 int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / rows, oy = line - which * rows;
    const T* plane = x + (long long)which * height * width;
    const int top = down.begin(oy), bottom = down.end(oy);
    for EACH_IN_ROW(ox, columns, shift) {
      const int left = across.begin(ox), right = across.end(ox);
      Wide<T> best = -INFINITY;
      int place = -1;
      for (int h = top; h < bottom; h++) {
        for (int w = left; w < right; w++) {
          const Wide<T> value = load(plane, h * width + w);
          if (value > best || value != value || place < 0) {
            best = value;
            place = h * width + w;
          }
        }
      }
      store(y, (long long)line * columns + ox, best);
      store(mask, (long long)line * columns + ox, Wide<I>(place));
    }
  }
}

template <typename T, typename I>
__global__ void max_pool_backward(const T* dy, const I* mask, T* dx, int height, int width,
                                  int rows, int columns, int kernel_h, int kernel_w, int stride_h,
                                  int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / height, h = line - which * height;
    const long long plane = (long long)which * rows * columns;
    const int top = down.first(h), bottom = down.last(h);
    for EACH_IN_ROW(w, width, shift) {
      const int left = across.first(w), right = across.last(w);
      const Wide<I> here = Wide<I>(h * width + w);
      Wide<T> sum = 0;
      for (int oy = top; oy < bottom; oy++) {
        for (int ox = left; ox < right; ox++) {
          const long long o = plane + oy * columns + ox;
          if (load(mask, o) == here) sum += load(dy, o);
        }
      }
      store(dx, (long long)line * width + w, sum);
    }
  }
}

template <typename T>
__global__ void average_pool_forward(const T* x, T* y, int height, int width, int rows,
                                     int columns, int kernel_h, int kernel_w, int stride_h,
                                     int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / rows, oy = line - which * rows;
    const T* plane = x + (long long)which * height * width;
    const int top = down.begin(oy), bottom = down.end(oy);
    for EACH_IN_ROW(ox, columns, shift) {
      const int left = across.begin(ox), right = across.end(ox);
      Wide<T> sum = 0;
      for (int h = top; h < bottom; h++) {
        for (int w = left; w < right; w++) sum += load(plane, h * width + w);
      }
      const Wide<T> area = Wide<T>(down.extent(oy)) * Wide<T>(across.extent(ox));
      store(y, (long long)line * columns + ox, sum / area);
    }
  }
}

template <typename T>
__global__ void average_pool_backward(const T* dy, T* dx, int height, int width, int rows,
                                      int columns, int kernel_h, int kernel_w, int stride_h,
                                      int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / height, h = line - which * height;
    const long long plane = (long long)which * rows * columns;
    const int top = down.first(h), bottom = down.last(h);
    for EACH_IN_ROW(w, width, shift) {
      const int left = across.first(w), right = across.last(w);
      Wide<T> sum = 0;
      for (int oy = top; oy < bottom; oy++) {
        for (int ox = left; ox < right; ox++) {
          const Wide<T> area = Wide<T>(down.extent(oy)) * Wide<T>(across.extent(ox));
          sum += load(dy, plane + oy * columns + ox) / area;
        }
      }
      store(dx, (long long)line * width + w, sum);
    }
  }
}

// Picks an element with a probability proportional to its value; `random` has y's shape.
template <typename T, typename I>
__global__ void stochastic_pool_forward(const T* x, const Wide<T>* random, T* y, I* mask,
                                        int height, int width, int rows, int columns, int kernel_h,
                                        int kernel_w, int stride_h, int stride_w, int pad_h,
                                        int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / rows, oy = line - which * rows;
    const T* plane = x + (long long)which * height * width;
    const int top = down.begin(oy), bottom = down.end(oy);
    for EACH_IN_ROW(ox, columns, shift) {
      const int left = across.begin(ox), right = across.end(ox);
      const long long target = (long long)line * columns + ox;
      Wide<T> total = 0;
      for (int h = top; h < bottom; h++) {
        for (int w = left; w < right; w++) total += load(plane, h * width + w);
      }
      const Wide<T> threshold = random[target] * total;
      Wide<T> running = 0, value = 0;
      int place = -1;
      bool found = false;
      for (int h = top; h < bottom && !found; h++) {
        for (int w = left; w < right && !found; w++) {
          place = h * width + w;
          value = load(plane, place);
          running += value;
          found = running >= threshold;
        }
      }
      store(y, target, value);
      store(mask, target, Wide<I>(place));
    }
  }
}

// The expectation of that: the sum of squares over the sum.
template <typename T>
__global__ void stochastic_pool_mean(const T* x, T* y, int height, int width, int rows,
                                     int columns, int kernel_h, int kernel_w, int stride_h,
                                     int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  for EACH_ROW(line, lines, shift) {
    const int which = line / rows, oy = line - which * rows;
    const T* plane = x + (long long)which * height * width;
    const int top = down.begin(oy), bottom = down.end(oy);
    for EACH_IN_ROW(ox, columns, shift) {
      const int left = across.begin(ox), right = across.end(ox);
      Wide<T> total = 0, squares = 0;
      for (int h = top; h < bottom; h++) {
        for (int w = left; w < right; w++) {
          const Wide<T> value = load(plane, h * width + w);
          total += value;
          squares += value * value;
        }
      }
      store(y, (long long)line * columns + ox, total != 0 ? squares / total : total);
    }
  }
}
