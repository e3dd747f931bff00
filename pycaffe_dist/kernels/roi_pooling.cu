// Pooling of boxes: a thread for each element of the result.  Backward that is a pixel, which adds
// the gradients of the bins or points that it is part of, box by box, so that the order of a sum
// does not depend on the GPU.
//
// Tables of bins are (boxes, 2, most): columns, then rows; see kernels/roi_pooling.py.

// Element i of an array (first, channels, rows, columns).
struct Element {
  int first, channel, row, column;

  __device__ Element(int i, int channels, int rows, int columns) {
    column = i % columns, i /= columns;
    row = i % rows, i /= rows;
    channel = i % channels, first = i / channels;
  }
};

// Of equal maxima the first wins, a NaN wins against all, an empty bin gives 0 and -1.
template <typename T>
__global__ void roi_max_forward(const T* x, const long long* image, const int* begin,
                                const int* end, T* y, int* mask, int channels, int height,
                                int width, int rows, int columns, int most, int n) {
  for EACH(i, n) {
    const Element at(i, channels, rows, columns);
    const T* plane = x + (image[at.first] * channels + at.channel) * height * width;
    const int across = at.first * 2 * most + at.column, down = (at.first * 2 + 1) * most + at.row;
    Wide<T> best = 0;
    int place = -1;
    for (int h = begin[down]; h < end[down]; h++) {
      for (int w = begin[across]; w < end[across]; w++) {
        const Wide<T> value = load(plane, h * width + w);
        if (place < 0 || value > best || value != value) {
          best = value;
          place = h * width + w;
        }
      }
    }
    store(y, i, best);
    mask[i] = place;
  }
}

template <typename T>
__global__ void roi_max_backward(const T* dy, const int* mask, const long long* image,
                                 const int* begin, const int* end, T* dx, int boxes, int channels,
                                 int height, int width, int rows, int columns, int most, int n) {
  for EACH(i, n) {
    const Element at(i, channels, height, width);
    const int here = at.row * width + at.column;
    Wide<T> sum = 0;
    for (int r = 0; r < boxes; r++) {
      if (image[r] != at.first) continue;
      const int across = r * 2 * most, down = across + most;
      if (at.row < begin[down] || at.row >= end[down + rows - 1]) continue;
      if (at.column < begin[across] || at.column >= end[across + columns - 1]) continue;
      const long long first = ((long long)r * channels + at.channel) * rows * columns;
      for (int p = 0; p < rows; p++) {
        if (at.row < begin[down + p] || at.row >= end[down + p]) continue;
        for (int q = 0; q < columns; q++) {
          const long long o = first + p * columns + q;
          if (mask[o] == here) sum += load(dy, o);
        }
      }
    }
    store(dx, i, sum);
  }
}

// The number of pixels of a bin, at least 1.
__device__ __forceinline__ int pixels_of(const int* begin, const int* end, int down, int across) {
  return max(1, max(0, end[down] - begin[down]) * max(0, end[across] - begin[across]));
}

template <typename T>
__global__ void roi_average_forward(const T* x, const long long* image, const int* begin,
                                    const int* end, T* y, int channels, int height, int width,
                                    int size, int n) {
  for EACH(i, n) {
    const Element at(i, channels / (size * size), size, size);
    const int channel = (at.channel * size + at.row) * size + at.column;
    const T* plane = x + (image[at.first] * channels + channel) * height * width;
    const int across = at.first * 2 * size + at.column, down = (at.first * 2 + 1) * size + at.row;
    Wide<T> sum = 0;
    for (int h = begin[down]; h < end[down]; h++) {
      for (int w = begin[across]; w < end[across]; w++) sum += load(plane, h * width + w);
    }
    store(y, i, sum / Wide<T>(pixels_of(begin, end, down, across)));
  }
}

template <typename T>
__global__ void roi_average_backward(const T* dy, const long long* image, const int* begin,
                                     const int* end, T* dx, int boxes, int channels, int height,
                                     int width, int size, int n) {
  for EACH(i, n) {
    const Element at(i, channels, height, width);
    const int bins = size * size, p = at.channel / size % size, q = at.channel % size;
    Wide<T> sum = 0;
    for (int r = 0; r < boxes; r++) {
      const int across = r * 2 * size + q, down = (r * 2 + 1) * size + p;
      if (image[r] != at.first || at.row < begin[down] || at.row >= end[down]) continue;
      if (at.column < begin[across] || at.column >= end[across]) continue;
      // Channels of x and bins of y have the same order.
      const Wide<T> value = load(dy, (long long)r * channels / bins * bins + at.channel);
      sum += value / Wide<T>(pixels_of(begin, end, down, across));
    }
    store(dx, i, sum);
  }
}

template <typename T, typename P>
__global__ void roi_sample_forward(const T* x, const long long* image, const int* low,
                                   const P* part, T* y, int channels, int height, int width,
                                   int rows, int columns, int most, int n) {
  for EACH(i, n) {
    const Element at(i, channels, rows, columns);
    const T* plane = x + (image[at.first] * channels + at.channel) * height * width;
    const int across = at.first * 2 * most + at.column, down = (at.first * 2 + 1) * most + at.row;
    const int h = low[down], w = low[across];
    Wide<T> value = 0;
    if (h >= 0 && w >= 0) {
      const int under = min(h + 1, height - 1), beside = min(w + 1, width - 1);
      const Wide<T> v = part[down], u = part[across];
      const Wide<T> above = load(plane, h * width + w) * (1 - u) +
                            load(plane, h * width + beside) * u;
      const Wide<T> below = load(plane, under * width + w) * (1 - u) +
                            load(plane, under * width + beside) * u;
      value = above * (1 - v) + below * v;
    }
    store(y, i, value);
  }
}

// The weight of cell i in a sample between cells low and low + 1, of `size` cells.
template <typename P>
__device__ __forceinline__ P weight_of(int i, int low, P near, P far, int size) {
  if (low < 0) return 0;
  return (i == low ? near : P(0)) + (i == min(low + 1, size - 1) ? far : P(0));
}

template <typename T, typename P>
__global__ void roi_sample_backward(const T* dy, const long long* image, const int* low,
                                    const P* near, const P* far, T* dx, int boxes, int channels,
                                    int height, int width, int rows, int columns, int most,
                                    int n) {
  for EACH(i, n) {
    const Element at(i, channels, height, width);
    Wide<T> sum = 0;
    for (int r = 0; r < boxes; r++) {
      if (image[r] != at.first) continue;
      const int across = r * 2 * most, down = across + most;
      const long long first = ((long long)r * channels + at.channel) * rows * columns;
      for (int p = 0; p < rows; p++) {
        const Wide<T> v = weight_of(at.row, low[down + p], near[down + p], far[down + p],
                                    height);
        if (v == 0) continue;
        for (int q = 0; q < columns; q++) {
          const int place = across + q;
          const Wide<T> u = weight_of(at.column, low[place], near[place], far[place], width);
          if (u != 0) sum += u * v * load(dy, first + p * columns + q);
        }
      }
    }
    store(dx, i, sum);
  }
}

// A thread for each box and channel; see kernels/roi_pooling.py for the sums.
template <typename T, typename P>
__global__ void roi_sample_slopes(const T* x, const long long* image, const int* low,
                                  const P* part, const P* share, const T* dy, P* slopes,
                                  int channels, int height, int width, int rows, int columns,
                                  int most, int n) {
  for EACH(i, n) {
    const int r = i / channels, across = r * 2 * most, down = across + most;
    const T* plane = x + (image[r] * channels + i % channels) * height * width;
    P sums[4] = {0, 0, 0, 0};
    for (int p = 0; p < rows; p++) {
      const int h = low[down + p];
      if (h < 0 || h + 1 >= height) continue;
      for (int q = 0; q < columns; q++) {
        const int w = low[across + q];
        if (w < 0 || w + 1 >= width) continue;
        const int here = h * width + w, under = here + width;
        const P v = part[down + p], u = part[across + q];
        const P a = load(plane, here), b = load(plane, here + 1);
        const P c = load(plane, under), d = load(plane, under + 1);
        const P value = load(dy, (long long)i * rows * columns + p * columns + q);
        const P rise = value * ((1 - v) * (b - a) + v * (d - c));
        const P fall = value * ((1 - u) * (c - a) + u * (d - b));
        sums[0] += rise * (1 - share[across + q]);
        sums[1] += fall * (1 - share[down + p]);
        sums[2] += rise * share[across + q];
        sums[3] += fall * share[down + p];
      }
    }
    for (int k = 0; k < 4; k++) slopes[(long long)i * 4 + k] = sums[k];
  }
}
