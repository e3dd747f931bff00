// Pooling of planes (height, width) into (rows, columns): a thread for each element of the result.
// Forward that is a window; backward it is a pixel, which adds the gradients of its windows.

// The positions of the windows on one axis.
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

  // A window's size inside the padded image, which is Caffe's divisor.
  __device__ int extent(int o) const {
    const int start = o * stride - pad;
    return max(1, min(start + kernel, size + pad) - start);
  }

  __device__ int divided(int n) const {
    return stride == 1 ? n : stride == 2 ? n >> 1 : n / stride;
  }
};

// A thread's work: element (row, column) of a plane of the result, the beginning `from` of that
// plane in the other array, and the rows and columns there that belong to the element.
struct Place {
  int row, column;
  long long from, target;
  int top, bottom, left, right;
};

// Calls `each` for this thread's windows, with the pixels that they cover.
template <typename Each>
__device__ void each_window(Windows down, Windows across, int lines, int shift, const Each& each) {
  for EACH_ROW(line, lines, shift) {
    const int plane = line / down.count, row = line - plane * down.count;
    const long long from = (long long)plane * down.size * across.size;
    const int top = down.begin(row), bottom = down.end(row);
    for EACH_IN_ROW(column, across.count, shift) {
      const long long target = (long long)line * across.count + column;
      const int left = across.begin(column), right = across.end(column);
      each(Place{row, column, from, target, top, bottom, left, right});
    }
  }
}

// Calls `each` for this thread's pixels, with the windows that cover them.
template <typename Each>
__device__ void each_pixel(Windows down, Windows across, int lines, int shift, const Each& each) {
  for EACH_ROW(line, lines, shift) {
    const int plane = line / down.size, row = line - plane * down.size;
    const long long from = (long long)plane * down.count * across.count;
    const int top = down.first(row), bottom = down.last(row);
    for EACH_IN_ROW(column, across.size, shift) {
      const long long target = (long long)line * across.size + column;
      const int left = across.first(column), right = across.last(column);
      each(Place{row, column, from, target, top, bottom, left, right});
    }
  }
}

// The sum of `value` of each element of a window.
template <typename T, typename Value>
__device__ Wide<T> sum_over(const T* x, const Place& at, int width, const Value& value) {
  const T* plane = x + at.from;
  Wide<T> sum = 0;
  for (int h = at.top; h < at.bottom; h++) {
    for (int w = at.left; w < at.right; w++) sum += value(load(plane, h * width + w));
  }
  return sum;
}

template <typename T> struct Same {
  __device__ T operator()(T value) const { return value; }
};
template <typename T> struct Square {
  __device__ T operator()(T value) const { return value * value; }
};

// Of equal maxima the first wins, a NaN wins against all, an empty window gives -inf and -1.
template <typename T, typename I>
__global__ void max_pool_forward(const T* x, T* y, I* mask, int height, int width, int rows,
                                 int columns, int kernel_h, int kernel_w, int stride_h,
                                 int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_window(down, across, lines, shift, [=](const Place& at) {
    const T* plane = x + at.from;
    Wide<T> best = -INFINITY;
    int place = -1;
    for (int h = at.top; h < at.bottom; h++) {
      for (int w = at.left; w < at.right; w++) {
        const Wide<T> value = load(plane, h * width + w);
        if (value > best || value != value || place < 0) {
          best = value;
          place = h * width + w;
        }
      }
    }
    store(y, at.target, best);
    store(mask, at.target, Wide<I>(place));
  });
}

template <typename T, typename I>
__global__ void max_pool_backward(const T* dy, const I* mask, T* dx, int height, int width,
                                  int rows, int columns, int kernel_h, int kernel_w, int stride_h,
                                  int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_pixel(down, across, lines, shift, [=](const Place& at) {
    const Wide<I> here = Wide<I>(at.row * width + at.column);
    Wide<T> sum = 0;
    for (int oy = at.top; oy < at.bottom; oy++) {
      for (int ox = at.left; ox < at.right; ox++) {
        const long long o = at.from + oy * columns + ox;
        if (load(mask, o) == here) sum += load(dy, o);
      }
    }
    store(dx, at.target, sum);
  });
}

template <typename T>
__global__ void average_pool_forward(const T* x, T* y, int height, int width, int rows,
                                     int columns, int kernel_h, int kernel_w, int stride_h,
                                     int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_window(down, across, lines, shift, [=](const Place& at) {
    const Wide<T> area = Wide<T>(down.extent(at.row)) * Wide<T>(across.extent(at.column));
    store(y, at.target, sum_over(x, at, width, Same<Wide<T>>()) / area);
  });
}

template <typename T>
__global__ void average_pool_backward(const T* dy, T* dx, int height, int width, int rows,
                                      int columns, int kernel_h, int kernel_w, int stride_h,
                                      int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_pixel(down, across, lines, shift, [=](const Place& at) {
    Wide<T> sum = 0;
    for (int oy = at.top; oy < at.bottom; oy++) {
      for (int ox = at.left; ox < at.right; ox++) {
        const Wide<T> area = Wide<T>(down.extent(oy)) * Wide<T>(across.extent(ox));
        sum += load(dy, at.from + oy * columns + ox) / area;
      }
    }
    store(dx, at.target, sum);
  });
}

// Picks an element with a probability proportional to its value; `random` has y's shape.
template <typename T, typename I>
__global__ void stochastic_pool_forward(const T* x, const Wide<T>* random, T* y, I* mask,
                                        int height, int width, int rows, int columns, int kernel_h,
                                        int kernel_w, int stride_h, int stride_w, int pad_h,
                                        int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_window(down, across, lines, shift, [=](const Place& at) {
    const T* plane = x + at.from;
    const Wide<T> threshold = random[at.target] * sum_over(x, at, width, Same<Wide<T>>());
    Wide<T> running = 0, value = 0;
    int place = -1;
    bool found = false;
    for (int h = at.top; h < at.bottom && !found; h++) {
      for (int w = at.left; w < at.right && !found; w++) {
        place = h * width + w;
        value = load(plane, place);
        running += value;
        found = running >= threshold;
      }
    }
    store(y, at.target, value);
    store(mask, at.target, Wide<I>(place));
  });
}

// The mean of these picks: the sum of squares over the sum.
template <typename T>
__global__ void stochastic_pool_mean(const T* x, T* y, int height, int width, int rows,
                                     int columns, int kernel_h, int kernel_w, int stride_h,
                                     int stride_w, int pad_h, int pad_w, int lines, int shift) {
  const Windows down = {kernel_h, stride_h, pad_h, height, rows};
  const Windows across = {kernel_w, stride_w, pad_w, width, columns};
  each_window(down, across, lines, shift, [=](const Place& at) {
    const Wide<T> total = sum_over(x, at, width, Same<Wide<T>>());
    const Wide<T> squares = sum_over(x, at, width, Square<Wide<T>>());
    store(y, at.target, total != 0 ? squares / total : total);
  });
}
