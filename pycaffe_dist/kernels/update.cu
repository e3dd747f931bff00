// Solver updates: each method is one pass over weight, gradient and history.

template <typename P>
__device__ P gradient(P d, P w, P scale, P l2, P l1) {
  const P g = scale * d + l2 * w;
  return w > 0 ? g + l1 : w < 0 ? g - l1 : g;
}

template <typename P>
__global__ void sgd_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P momentum, int n) {
  for EACH(i, n) {
    const P step = momentum * h[i] + rate * gradient(d[i], w[i], scale, l2, l1);
    h[i] = step;
    d[i] = step;
    w[i] -= step;
  }
}

template <typename P>
__global__ void nesterov_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P momentum, int n) {
  for EACH(i, n) {
    const P before = h[i];
    const P after = momentum * before + rate * gradient(d[i], w[i], scale, l2, l1);
    const P step = (1 + momentum) * after - momentum * before;
    h[i] = after;
    d[i] = step;
    w[i] -= step;
  }
}

template <typename P>
__global__ void adagrad_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P delta, int n) {
  for EACH(i, n) {
    const P g = gradient(d[i], w[i], scale, l2, l1);
    const P sum = h[i] + g * g;
    const P step = rate * (g / (sqrt(sum) + delta));
    h[i] = sum;
    d[i] = step;
    w[i] -= step;
  }
}

template <typename P>
__global__ void rmsprop_update(P* w, P* d, P* h, P scale, P l2, P l1, P rate, P rms_decay, P delta,
                               int n) {
  for EACH(i, n) {
    const P g = gradient(d[i], w[i], scale, l2, l1);
    const P mean = (1 - rms_decay) * (g * g) + rms_decay * h[i];
    const P step = rate * (g / (sqrt(mean) + delta));
    h[i] = mean;
    d[i] = step;
    w[i] -= step;
  }
}

template <typename P>
__global__ void adadelta_update(P* w, P* d, P* h, P* u, P scale, P l2, P l1, P rate, P momentum,
                                P delta, int n) {
  for EACH(i, n) {
    const P g = gradient(d[i], w[i], scale, l2, l1);
    const P mean = (1 - momentum) * (g * g) + momentum * h[i];
    const P before = u[i];
    const P step = g * sqrt((delta + before) / (delta + mean));
    h[i] = mean;
    u[i] = (1 - momentum) * (step * step) + momentum * before;
    d[i] = rate * step;
    w[i] -= rate * step;
  }
}

template <typename P>
__global__ void adam_update(P* w, P* d, P* m, P* v, P scale, P l2, P l1, P rate, P beta1, P beta2,
                            P delta, int n) {
  for EACH(i, n) {
    const P g = gradient(d[i], w[i], scale, l2, l1);
    const P mean = (1 - beta1) * g + beta1 * m[i];
    const P variance = (1 - beta2) * (g * g) + beta2 * v[i];
    const P step = rate * (mean / (sqrt(variance) + delta));
    m[i] = mean;
    v[i] = variance;
    d[i] = step;
    w[i] -= step;
  }
}
