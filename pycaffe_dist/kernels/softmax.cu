// Softmax over the middle axis of (outer, classes, inner), and its multinomial logistic loss.
//
// A thread that computes a whole softmax finds the maximum and the sum of exponentials in one pass:
// it scales the sum so far down whenever it finds a larger maximum.

// A thread for each element of (outer, inner), or a block for each row if inner is 1.
template <typename T>
__global__ void softmax_planes(const T* x, T* y, int classes, int inner, int n) {
  for EACH(i, n) {
    const int sample = i / inner;
    const long long first = (long long)sample * classes * inner + (i - sample * inner);
    const T* source = x + first;
    Wide<T> largest = load(source, 0), total = 1;
    for (int c = 1; c < classes; c++) {
      const Wide<T> value = load(source, (long long)c * inner);
      if (value > largest) {
        total = total * exp(largest - value) + 1;
        largest = value;
      } else {
        // This avoids e^(-∞ + ∞) if the first values are all -∞.
        total += value == largest ? Wide<T>(1) : exp(value - largest);
      }
    }
    const Wide<T> factor = 1 / total;
    for (int c = 0; c < classes; c++) {
      const long long place = (long long)c * inner;
      store(y, first + place, exp(load(source, place) - largest) * factor);
    }
  }
}

template <typename T>
__global__ void softmax_rows(const T* x, T* y, int classes, int rows) {
  for EACH_BLOCK(row, rows) {
    const long long first = (long long)row * classes;
    Wide<T> largest = load(x, first);
    for EACH_THREAD(c, classes) largest = max(largest, load(x, first + c));
    largest = block_max(largest);
    Wide<T> total = 0;
    for EACH_THREAD(c, classes) total += exp(load(x, first + c) - largest);
    const Wide<T> factor = 1 / block_sum(total);
    for EACH_THREAD(c, classes) store(y, first + c, exp(load(x, first + c) - largest) * factor);
  }
}

// dx = y·(dy - the sum of y·dy); dx may be dy.
template <typename T>
__global__ void gradient_planes(const T* y, const T* dy, T* dx, int classes, int inner, int n) {
  for EACH(i, n) {
    const int sample = i / inner;
    const long long first = (long long)sample * classes * inner + (i - sample * inner);
    Wide<T> dot = 0;
    for (int c = 0; c < classes; c++) {
      const long long place = first + (long long)c * inner;
      dot += load(y, place) * load(dy, place);
    }
    for (int c = 0; c < classes; c++) {
      const long long place = first + (long long)c * inner;
      store(dx, place, load(y, place) * (load(dy, place) - dot));
    }
  }
}

template <typename T>
__global__ void gradient_rows(const T* y, const T* dy, T* dx, int classes, int rows) {
  for EACH_BLOCK(row, rows) {
    const long long first = (long long)row * classes;
    Wide<T> dot = 0;
    for EACH_THREAD(c, classes) dot += load(y, first + c) * load(dy, first + c);
    dot = block_sum(dot);
    for EACH_THREAD(c, classes) {
      store(dx, first + c, load(y, first + c) * (load(dy, first + c) - dot));
    }
  }
}

// The sum of -log(probability of the label) of a sample, the number of its labels that count, and
// the first label that is no class, or -1.  A block for each sample.
template <typename T, typename L>
__global__ void label_loss(const T* probability, const L* label, const double* weights,
                           double* loss, long long* valid, long long* wrong, int ignore,
                           double smallest, int outer, int classes, int inner) {
  for EACH_BLOCK(sample, outer) {
    const long long first = (long long)sample * classes * inner;
    double sum = 0;
    int counted = 0, before_end = 0;
    for EACH_THREAD(i, inner) {
      const int k = (int)load(label, (long long)sample * inner + i);
      if (k == ignore) continue;
      if (k < 0 || k >= classes) {
        before_end = max(before_end, inner - i);
        continue;
      }
      const double own = load(probability, first + (long long)k * inner + i);
      const double logarithm = log(own < smallest ? smallest : own);  // a NaN stays
      sum -= weights ? weights[k] * logarithm : logarithm;
      counted++;
    }
    sum = block_sum(sum);
    counted = block_sum(counted);
    before_end = block_max(before_end);
    if (threadIdx.x == 0) {
      loss[sample] = sum;
      valid[sample] = counted;
      wrong[sample] = before_end ? inner - before_end : -1;
    }
  }
}

// The same with a thread for each sample, if samples have one label.
template <typename T, typename L>
__global__ void single_label_loss(const T* probability, const L* label, const double* weights,
                                  double* loss, long long* valid, long long* wrong, int ignore,
                                  double smallest, int classes, int n) {
  for EACH(sample, n) {
    const int k = (int)load(label, sample);
    const bool known = k >= 0 && k < classes, counts = known && k != ignore;
    const double own = counts ? load(probability, (long long)sample * classes + k) : 1.0;
    const double logarithm = log(own < smallest ? smallest : own);
    loss[sample] = weights && counts ? -weights[k] * logarithm : -logarithm;
    valid[sample] = counts;
    wrong[sample] = known || k == ignore ? -1 : 0;
  }
}

// The loss of each label, 0 for those that do not count.
template <typename T, typename L, typename P>
__global__ void each_label_loss(const T* probability, const L* label, P* losses, int ignore,
                                double smallest, int classes, int inner, int n) {
  for EACH(at, n) {
    const int sample = at / inner, i = at - sample * inner, k = (int)load(label, at);
    const bool counts = k != ignore && k >= 0 && k < classes;
    const long long place = ((long long)sample * classes + k) * inner + i;
    const double own = counts ? load(probability, place) : 1.0;
    store(losses, at, Wide<P>(-log(own < smallest ? smallest : own)));
  }
}

// dx = weight/normalizer·(probability - [class is the label]), times the label's weight if there
// are weights, and 0 where labels are ignored.
template <typename T, typename L>
__global__ void label_loss_gradient(const T* probability, const L* label, const double* weights,
                                    const double* normalizer, T* dx, double weight, int ignore,
                                    int classes, int inner, int rows, int shift) {
  const Wide<T> factor = Wide<T>(weight / normalizer[0]);
  for EACH_ROW(row, rows, shift) {
    const int sample = row / classes, c = row - sample * classes;
    for EACH_IN_ROW(i, inner, shift) {
      const int k = (int)load(label, (long long)sample * inner + i);
      const long long place = (long long)row * inner + i;
      const Wide<T> value = load(probability, place) - (k == c ? Wide<T>(1) : Wide<T>(0));
      const bool weighted = weights && k >= 0 && k < classes;
      const Wide<T> own = weighted ? factor * Wide<T>(weights[k]) : factor;
      store(dx, place, k == ignore ? Wide<T>(0) : value * own);
    }
  }
}
