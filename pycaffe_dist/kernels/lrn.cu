// Local response normalisation.  A thread follows one pixel through a chunk of `length` channels with
// running sums, or sums up the window around its pixel; neighbouring threads have neighbouring
// pixels.

// A thread's first element, with its chunk of channels.
struct Chunk {
  long long first;
  int begin, end;

  __device__ Chunk(int i, int channels, int pixels, int chunks, int length) {
    const int rest = i / pixels, image = rest / chunks;
    first = (long long)image * channels * pixels + (i - rest * pixels);
    begin = (rest - image * chunks) * length;
    end = min(channels, begin + length);
  }
};

// scale^-beta; the usual exponent needs square roots only.
template <typename V> __device__ __forceinline__ V power(V scale, V beta) {
  if (beta == V(0.75)) {
    const V root = sqrt(scale);
    return V(1) / (root * sqrt(root));
  }
  return pow(scale, -beta);
}

template <typename T>
__global__ void across_forward(const T* x, T* y, T* scale, int channels, int pixels, int chunks,
                               int length, int half, Wide<T> factor, Wide<T> beta, Wide<T> k,
                               int n) {
  for EACH(i, n) {
    const Chunk chunk(i, channels, pixels, chunks, length);
    const long long first = chunk.first;
    const int start = max(0, chunk.begin - half);
    Wide<T> squares = 0;
    for (int c = start - half; c < chunk.end; c++) {
      const int newest = c + half, oldest = c - half - 1;
      if (newest < channels) {
        const Wide<T> value = load(x, first + (long long)newest * pixels);
        squares += value * value;
      }
      if (oldest >= start) {
        const Wide<T> value = load(x, first + (long long)oldest * pixels);
        squares -= value * value;
      }
      if (c < chunk.begin) continue;
      const long long here = first + (long long)c * pixels;
      const Wide<T> total = k + factor * squares;
      store(scale, here, total);
      store(y, here, load(x, here) * power(total, beta));
    }
  }
}

// dx = dy·scale^-beta - factor·x·(the sum of dy·y/scale over the window).
template <typename T>
__global__ void across_backward(const T* x, const T* y, const T* scale, const T* dy, T* dx,
                                int channels, int pixels, int chunks, int length, int half,
                                Wide<T> factor, Wide<T> beta, int n) {
  for EACH(i, n) {
    const Chunk chunk(i, channels, pixels, chunks, length);
    const long long first = chunk.first;
    const int start = max(0, chunk.begin - half);
    Wide<T> total = 0;
    for (int c = start - half; c < chunk.end; c++) {
      const int newest = c + half, oldest = c - half - 1;
      if (newest < channels) {
        const long long place = first + (long long)newest * pixels;
        total += load(dy, place) * load(y, place) / load(scale, place);
      }
      if (oldest >= start) {
        const long long place = first + (long long)oldest * pixels;
        total -= load(dy, place) * load(y, place) / load(scale, place);
      }
      if (c < chunk.begin) continue;
      const long long here = first + (long long)c * pixels;
      const Wide<T> direct = load(dy, here) * power(load(scale, here), beta);
      store(dx, here, direct - factor * load(x, here) * total);
    }
  }
}

// Rows of planes of `height` rows.
template <typename T>
__global__ void within_forward(const T* x, T* y, T* scale, int height, int width, int half,
                               Wide<T> factor, Wide<T> beta, int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int h = line % height, top = max(0, h - half), bottom = min(height, h + half + 1);
    const long long plane = (long long)(line - h) * width;
    for EACH_IN_ROW(w, width, shift) {
      const int left = max(0, w - half), right = min(width, w + half + 1);
      Wide<T> squares = 0;
      for (int i = top; i < bottom; i++) {
        for (int j = left; j < right; j++) {
          const Wide<T> value = load(x, plane + i * width + j);
          squares += value * value;
        }
      }
      const long long here = plane + h * width + w;
      const Wide<T> total = 1 + factor * squares;
      store(scale, here, total);
      store(y, here, load(x, here) * power(total, beta));
    }
  }
}

template <typename T>
__global__ void within_backward(const T* x, const T* y, const T* scale, const T* dy, T* dx,
                                int height, int width, int half, Wide<T> factor, Wide<T> beta,
                                int lines, int shift) {
  for EACH_ROW(line, lines, shift) {
    const int h = line % height, top = max(0, h - half), bottom = min(height, h + half + 1);
    const long long plane = (long long)(line - h) * width;
    for EACH_IN_ROW(w, width, shift) {
      const int left = max(0, w - half), right = min(width, w + half + 1);
      Wide<T> total = 0;
      for (int i = top; i < bottom; i++) {
        for (int j = left; j < right; j++) {
          const long long place = plane + i * width + j;
          total += load(dy, place) * load(y, place) / load(scale, place);
        }
      }
      const long long here = plane + h * width + w;
      const Wide<T> direct = load(dy, here) * power(load(scale, here), beta);
      store(dx, here, direct - factor * load(x, here) * total);
    }
  }
}
