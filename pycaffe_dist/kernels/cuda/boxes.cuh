// Boxes (xmin, ymin, xmax, ymax), as in kernels/boxes.py; a source includes this file.

// Products are never joined with a sum: boxes of equal overlap must stay equal, and as on the CPU.
__device__ __forceinline__ float times(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double times(double x, double y) { return __dmul_rn(x, y); }

template <typename P> struct Box { P a, b, c, d; };

// The numbers of PriorBoxParameter.CodeType.
enum { CORNER = 1, CENTER_SIZE = 2, CORNER_SIZE = 3 };

template <typename T> __device__ __forceinline__ Box<Wide<T>> box_at(const T* boxes, long long i) {
  return {load(boxes, 4 * i), load(boxes, 4 * i + 1), load(boxes, 4 * i + 2), load(boxes, 4 * i + 3)};
}

template <typename P> __device__ __forceinline__ P area(const Box<P>& box) {
  const P width = box.c - box.a, height = box.d - box.b;
  return width >= 0 && height >= 0 ? times(width, height) : P(0);
}

// The intersection over union, 0 if the boxes share no area.
template <typename P> __device__ __forceinline__ P overlap(const Box<P>& x, const Box<P>& y) {
  const P width = min(x.c, y.c) - max(x.a, y.a), height = min(x.d, y.d) - max(x.b, y.b);
  if (!(width > 0 && height > 0)) return P(0);
  const P shared = times(width, height);
  return shared / (area(x) + area(y) - shared);
}

template <typename P> __device__ __forceinline__ bool crosses_border(const Box<P>& box) {
  return box.a < 0 || box.b < 0 || box.c < 0 || box.d < 0 || box.a > 1 || box.b > 1 || box.c > 1 ||
         box.d > 1;
}

// The four numbers that decode_box turns into `box`.
template <typename P>
__device__ Box<P> encode_box(const Box<P>& prior, const Box<P>& variance, const Box<P>& box,
                             int code, bool variance_in_target) {
  const P width = prior.c - prior.a, height = prior.d - prior.b;
  Box<P> v = {box.a - prior.a, box.b - prior.b, box.c - prior.c, box.d - prior.d};
  if (code == CENTER_SIZE) {
    v.a = (box.a + box.c) / 2 - (prior.a + prior.c) / 2;
    v.b = (box.b + box.d) / 2 - (prior.b + prior.d) / 2;
    v.c = log((box.c - box.a) / width);
    v.d = log((box.d - box.b) / height);
  }
  if (code != CORNER) v.a /= width, v.b /= height;
  if (code == CORNER_SIZE) v.c /= width, v.d /= height;
  if (variance_in_target) return v;
  return {v.a / variance.a, v.b / variance.b, v.c / variance.c, v.d / variance.d};
}

// The box that four predicted numbers mean for a prior.
template <typename P>
__device__ Box<P> decode_box(const Box<P>& prior, const Box<P>& variance, Box<P> v, int code,
                             bool variance_in_target) {
  if (!variance_in_target) {
    v = {times(variance.a, v.a), times(variance.b, v.b), times(variance.c, v.c),
         times(variance.d, v.d)};
  }
  const P width = prior.c - prior.a, height = prior.d - prior.b;
  if (code == CENTER_SIZE) {
    const P x = times(v.a, width) + (prior.a + prior.c) / 2;
    const P y = times(v.b, height) + (prior.b + prior.d) / 2;
    const P half_width = times(exp(v.c), width) / 2, half_height = times(exp(v.d), height) / 2;
    return {x - half_width, y - half_height, x + half_width, y + half_height};
  }
  if (code == CORNER_SIZE) {
    v = {times(v.a, width), times(v.b, height), times(v.c, width), times(v.d, height)};
  }
  return {prior.a + v.a, prior.b + v.b, prior.c + v.c, prior.d + v.d};
}
