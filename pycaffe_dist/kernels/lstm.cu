// One time step of long short-term memory: a thread for each cell.

template <typename F> __device__ __forceinline__ F logistic(F x) {
  return F(0.5) + F(0.5) * tanh(F(0.5) * x);
}

// The markers of continued sequences may be wider than the data.
template <typename T, typename P>
__global__ void lstm_unit_forward(const T* c_old, const T* gates, const P* keep, T* activations,
                                  T* c, T* h, unsigned int factor, int bits, int hidden, int n) {
  for EACH(at, n) {
    const int row = divide(at, factor, bits);
    const int first = at + 3 * row * hidden;
    const Wide<T> goes_on = load(keep, row);
    const Wide<T> i = logistic(load(gates, first));
    const Wide<T> f = goes_on * logistic(load(gates, first + hidden));
    const Wide<T> o = logistic(load(gates, first + 2 * hidden));
    const Wide<T> g = tanh(load(gates, first + 3 * hidden));
    // A state that is not kept may be NaN.
    const Wide<T> cell = goes_on == 0 ? i * g : f * load(c_old, at) + i * g;
    store(c, at, cell);
    store(h, at, o * tanh(cell));
    store(activations, first, i);
    store(activations, first + hidden, f);
    store(activations, first + 2 * hidden, o);
    store(activations, first + 3 * hidden, g);
  }
}

template <typename T>
__global__ void lstm_unit_backward(const T* c_old, const T* activations, const T* c, const T* dc,
                                   const T* dh, T* dc_old, T* dgates, unsigned int factor,
                                   int bits, int hidden, int n) {
  for EACH(at, n) {
    const int row = divide(at, factor, bits);
    const int first = at + 3 * row * hidden;
    const Wide<T> i = load(activations, first);
    const Wide<T> f = load(activations, first + hidden);
    const Wide<T> o = load(activations, first + 2 * hidden);
    const Wide<T> g = load(activations, first + 3 * hidden);
    const Wide<T> squashed = tanh(load(c, at)), output = load(dh, at);
    const Wide<T> through_c = load(dc, at) + output * o * (1 - squashed * squashed);
    store(dc_old, at, through_c * f);
    store(dgates, first, through_c * g * i * (1 - i));
    store(dgates, first + hidden, through_c * load(c_old, at) * f * (1 - f));
    store(dgates, first + 2 * hidden, output * squashed * o * (1 - o));
    store(dgates, first + 3 * hidden, through_c * i * (1 - g * g));
  }
}
