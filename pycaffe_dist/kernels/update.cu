// Solver updates: each method is one pass over weight, gradient and history.

// The scale and regularization of the raw gradient, and the learning rate.
template <typename P> struct Settings { P scale, l2, l1, rate; };

template <typename P> __device__ __forceinline__ P decay(P w, const Settings<P>& s) {
  return w > 0 ? s.l2 * w + s.l1 : w < 0 ? s.l2 * w - s.l1 : s.l2 * w;
}

template <typename P> __device__ __forceinline__ P gradient(P d, P w, const Settings<P>& s) {
  return s.scale * d + decay(w, s);
}

// Each method's update of one element.
template <typename P>
__device__ __forceinline__ void sgd(P& w, P& d, P& h, const Settings<P>& s, P momentum) {
  const P step = momentum * h + s.rate * gradient(d, w, s);
  h = step;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void nesterov(P& w, P& d, P& h, const Settings<P>& s, P momentum) {
  const P before = h;
  const P after = momentum * before + s.rate * gradient(d, w, s);
  const P step = (1 + momentum) * after - momentum * before;
  h = after;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void adagrad(P& w, P& d, P& h, const Settings<P>& s, P delta) {
  const P g = gradient(d, w, s);
  const P sum = h + g * g;
  const P step = s.rate * (g / (sqrt(sum) + delta));
  h = sum;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void rmsprop(P& w, P& d, P& h, const Settings<P>& s, P rms_decay,
                                        P delta) {
  const P g = gradient(d, w, s);
  const P mean = (1 - rms_decay) * (g * g) + rms_decay * h;
  const P step = s.rate * (g / (sqrt(mean) + delta));
  h = mean;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void adadelta(P& w, P& d, P& h, P& u, const Settings<P>& s, P momentum,
                                         P delta) {
  const P g = gradient(d, w, s);
  const P mean = (1 - momentum) * (g * g) + momentum * h;
  const P before = u;
  const P step = g * sqrt((delta + before) / (delta + mean));
  h = mean;
  u = (1 - momentum) * (step * step) + momentum * before;
  d = s.rate * step;
  w -= s.rate * step;
}

template <typename P>
__device__ __forceinline__ void adam(P& w, P& d, P& m, P& v, const Settings<P>& s, P beta1, P beta2,
                                     P delta) {
  const P g = gradient(d, w, s);
  const P mean = (1 - beta1) * g + beta1 * m;
  const P variance = (1 - beta2) * (g * g) + beta2 * v;
  const P step = s.rate * (mean / (sqrt(variance) + delta));
  m = mean;
  v = variance;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void adamw(P& w, P& d, P& m, P& v, const Settings<P>& s, P beta1,
                                      P beta2, P delta, P first, P second) {
  const P g = s.scale * d;
  const P mean = (1 - beta1) * g + beta1 * m;
  const P variance = (1 - beta2) * (g * g) + beta2 * v;
  const P step = s.rate * (first * mean / (second * sqrt(variance) + delta) + decay(w, s));
  m = mean;
  v = variance;
  d = step;
  w -= step;
}

template <typename P>
__device__ __forceinline__ void lion(P& w, P& d, P& m, const Settings<P>& s, P beta1, P beta2) {
  const P g = s.scale * d;
  const P mean = beta1 * m + (1 - beta1) * g;
  const P sign = mean > 0 ? 1 : mean < 0 ? -1 : mean;
  const P step = s.rate * (sign + decay(w, s));
  m = beta2 * m + (1 - beta2) * g;
  d = step;
  w -= step;
}

// One parameter.
template <typename P>
__global__ void sgd_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P momentum, int n) {
  for EACH(i, n) sgd(w[i], d[i], h[i], Settings<P>{scale, l2, l1, rate}, momentum);
}

template <typename P>
__global__ void nesterov_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P momentum, int n) {
  for EACH(i, n) nesterov(w[i], d[i], h[i], Settings<P>{scale, l2, l1, rate}, momentum);
}

template <typename P>
__global__ void adagrad_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P delta, int n) {
  for EACH(i, n) adagrad(w[i], d[i], h[i], Settings<P>{scale, l2, l1, rate}, delta);
}

template <typename P>
__global__ void rmsprop_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P rms_decay, P delta,
                               int n) {
  for EACH(i, n) rmsprop(w[i], d[i], h[i], Settings<P>{scale, l2, l1, rate}, rms_decay, delta);
}

template <typename P>
__global__ void adadelta_update(P* w, P* d, P* h, P* u, P scale, P l2, P l1, P rate, P momentum,
                                P delta, int n) {
  for EACH(i, n) adadelta(w[i], d[i], h[i], u[i], Settings<P>{scale, l2, l1, rate}, momentum, delta);
}

template <typename P>
__global__ void adam_update(P* w, P* d, P* m, P* v, P scale, P l2, P l1, P rate, P beta1, P beta2,
                            P delta, int n) {
  for EACH(i, n) {
    adam(w[i], d[i], m[i], v[i], Settings<P>{scale, l2, l1, rate}, beta1, beta2, delta);
  }
}

template <typename P>
__global__ void adamw_update(P* w, P* d, P* m, P* v, P scale, P l2, P l1, P rate, P beta1, P beta2,
                             P delta, P first, P second, int n) {
  for EACH(i, n) {
    const Settings<P> s = {scale, l2, l1, rate};
    adamw(w[i], d[i], m[i], v[i], s, beta1, beta2, delta, first, second);
  }
}

template <typename P>
__global__ void lion_update(P* w, P* d, P* m, P scale, P l2, P l1, P rate, P beta1, P beta2,
                            int n) {
  for EACH(i, n) lion(w[i], d[i], m[i], Settings<P>{scale, l2, l1, rate}, beta1, beta2);
}

// A running mean of weights.
template <typename P> __global__ void blend(P* mean, const P* w, P share, int n) {
  for EACH(i, n) mean[i] += share * (w[i] - mean[i]);
}

// Many parameters, cut into pieces of at most `length` elements: a block for each.  `pieces` has a
// parameter's number and the beginning of the piece in it; `arrays` has each parameter's size and
// the addresses of its weights, gradient and up to two histories; `settings` has its l2, l1 and the
// factor of the common rate.  `scalars` has what changes between iterations: the scale, the common
// rate and the method's own numbers.
template <typename P, typename Update>
__device__ __forceinline__ void each_piece(const int* pieces, const long long* arrays,
                                           const P* settings, const P* scalars, int length,
                                           int count, const Update& update) {
  for EACH_BLOCK(piece, count) {
    const int which = pieces[2 * piece], begin = pieces[2 * piece + 1];
    const long long* row = arrays + 5 * which;
    const P* own = settings + 3 * which;
    const Settings<P> s = {scalars[0], own[0], own[1], scalars[1] * own[2]};
    P *w = (P*)row[1] + begin, *d = (P*)row[2] + begin;
    P *h = (P*)row[3] + begin, *u = (P*)row[4] + begin;
    const int n = min(length, (int)row[0] - begin);
    for EACH_THREAD(i, n) update(w + i, d + i, h + i, u + i, s);
  }
}

template <typename P>
__global__ void sgd_updates(const int* pieces, const long long* arrays, const P* settings,
                            const P* scalars, int length, int count) {
  const P momentum = scalars[2];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* h, P*, const Settings<P>& s) {
               sgd(*w, *d, *h, s, momentum);
             });
}

template <typename P>
__global__ void nesterov_updates(const int* pieces, const long long* arrays, const P* settings,
                                 const P* scalars, int length, int count) {
  const P momentum = scalars[2];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* h, P*, const Settings<P>& s) {
               nesterov(*w, *d, *h, s, momentum);
             });
}

template <typename P>
__global__ void adagrad_updates(const int* pieces, const long long* arrays, const P* settings,
                                const P* scalars, int length, int count) {
  const P delta = scalars[2];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* h, P*, const Settings<P>& s) {
               adagrad(*w, *d, *h, s, delta);
             });
}

template <typename P>
__global__ void rmsprop_updates(const int* pieces, const long long* arrays, const P* settings,
                                const P* scalars, int length, int count) {
  const P rms_decay = scalars[2], delta = scalars[3];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* h, P*, const Settings<P>& s) {
               rmsprop(*w, *d, *h, s, rms_decay, delta);
             });
}

template <typename P>
__global__ void adadelta_updates(const int* pieces, const long long* arrays, const P* settings,
                                 const P* scalars, int length, int count) {
  const P momentum = scalars[2], delta = scalars[3];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* h, P* u, const Settings<P>& s) {
               adadelta(*w, *d, *h, *u, s, momentum, delta);
             });
}

template <typename P>
__global__ void adam_updates(const int* pieces, const long long* arrays, const P* settings,
                             const P* scalars, int length, int count) {
  const P beta1 = scalars[2], beta2 = scalars[3], delta = scalars[4];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* m, P* v, const Settings<P>& s) {
               adam(*w, *d, *m, *v, s, beta1, beta2, delta);
             });
}

template <typename P>
__global__ void adamw_updates(const int* pieces, const long long* arrays, const P* settings,
                              const P* scalars, int length, int count) {
  const P beta1 = scalars[2], beta2 = scalars[3], delta = scalars[4], first = scalars[5], second = scalars[6];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* m, P* v, const Settings<P>& s) {
               adamw(*w, *d, *m, *v, s, beta1, beta2, delta, first, second);
             });
}

template <typename P>
__global__ void lion_updates(const int* pieces, const long long* arrays, const P* settings,
                             const P* scalars, int length, int count) {
  const P beta1 = scalars[2], beta2 = scalars[3];
  each_piece(pieces, arrays, settings, scalars, length, count,
             [=](P* w, P* d, P* m, P*, const Settings<P>& s) {
               lion(*w, *d, *m, s, beta1, beta2);
             });
}
