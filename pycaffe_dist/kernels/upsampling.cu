// Enlarged planes: pixels repeated, or put back where a maximum pooling found them.

// `lines` rows of y, each `scale` times `width` long.
template <typename T>
__global__ void repeat(const T* x, T* y, int width, int scale, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const T* source = x + (long long)(line / scale) * width;
    T* to = y + (long long)line * width * scale;
    for EACH_IN_ROW(w, width * scale, shift) to[w] = source[w / scale];
  }
}

// `lines` rows of dx.
template <typename T>
__global__ void repeat_gradient(const T* dy, T* dx, int width, int scale, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const T* source = dy + (long long)line * scale * width * scale;
    for EACH_IN_ROW(w, width, shift) {
      Wide<T> sum = 0;
      for (int h = 0; h < scale; h++) {
        for (int k = 0; k < scale; k++) {
          sum += load(source, (long long)h * width * scale + w * scale + k);
        }
      }
      store(dx, (long long)line * width + w, sum);
    }
  }
}

// For each place of y's planes the last of the `count` values per plane that go there.
template <typename I>
__global__ void last_values(const I* mask, int* last, unsigned long long* wrong, int count,
                            int size, int n) {
  for EACH(i, n) {
    const Wide<I> place = load(mask, i);
    if (place >= 0 && place < size) {
      atomicMax(last + (long long)(i / count) * size + int(place), i);
    } else {
      atomicMin(wrong, wrong_code(i, float(place)));
    }
  }
}

template <typename T>
__global__ void unpool(const T* x, const int* last, T* y, int n) {
  for EACH(i, n) store(y, i, last[i] < 0 ? Wide<T>(0) : load(x, last[i]));
}

template <typename T, typename I>
__global__ void unpool_gradient(const T* dy, const I* mask, T* dx, int count, int size, int n) {
  for EACH(i, n) {
    const Wide<I> place = load(mask, i);
    const bool exists = place >= 0 && place < size;  // else forward has noted it
    const long long from = (long long)(i / count) * size;
    store(dx, i, exists ? load(dy, from + int(place)) : Wide<T>(0));
  }
}
