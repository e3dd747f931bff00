// Labels as class numbers, correct predictions, and total losses.

template <typename T>
__global__ void class_numbers(const T* values, int limit, int ignore, bool whole,
                              long long* numbers, bool* counted, unsigned long long* wrong,
                              int n) {
  for EACH(i, n) {
    const Wide<T> value = load(values, i);
    // NaNs and values that are too large are no classes.
    const bool fits = value > -2147483520.0f && value < 2147483520.0f;
    const int number = fits ? int(value) : -1;
    const bool counts = !fits || number != ignore;
    const bool bad = counts && (number < 0 || number >= limit || (whole && number != value));
    if (bad) atomicMin(wrong, wrong_code(i, float(value)));
    numbers[i] = bad || !counts ? 0 : number;
    counted[i] = counts;
  }
}

// One block.
template <typename T>
__global__ void total_loss(const double* losses, const long long* valid, const long long* wrong_at,
                           const T* labels, double divisor, double* total,
                           unsigned long long* wrong, int outer, int inner) {
  double sum = 0, count = 0;
  long long first = -(1LL << 62);  // the largest of negative positions
  for EACH_THREAD(n, outer) {
    sum += losses[n];
    count += valid[n];
    if (wrong_at[n] >= 0) first = max(first, -(n * (long long)inner + wrong_at[n]));
  }
  sum = block_sum(sum), count = block_sum(count), first = block_max(first);
  if (threadIdx.x > 0) return;
  const double normalizer = divisor > 0 ? divisor : max(count, 1.0);
  total[0] = sum / normalizer;
  total[1] = normalizer;
  *wrong = ~0ULL;
  if (first > -(1LL << 62)) *wrong = wrong_code(int(-first), float(load(labels, -first)));
}

// A block for each prediction.
template <typename T>
__global__ void label_hits_in_rows(const T* scores, const long long* numbers, const bool* counted,
                                   int top_k, bool* hits, int classes, int rows) {
  for EACH_BLOCK(row, rows) {
    const long long start = (long long)row * classes;
    const Wide<T> own = load(scores, start + numbers[row]);
    int reached = 0;
    for EACH_THREAD(c, classes) reached += load(scores, start + c) >= own;
    reached = block_sum(reached);
    if (threadIdx.x == 0) hits[row] = counted[row] && reached - 1 < top_k;
  }
}

// A thread for each prediction; neighbouring predictions are neighbours in memory.
template <typename T>
__global__ void label_hits(const T* scores, const long long* numbers, const bool* counted,
                           int top_k, bool* hits, unsigned int factor, int bits, int classes,
                           int inner, int n) {
  for EACH(i, n) {
    const int row = divide(i, factor, bits);
    const long long start = (long long)row * classes * inner + (i - row * inner);
    const Wide<T> own = load(scores, start + numbers[i] * inner);
    int reached = 0;
    for (int c = 0; c < classes; c++) {
      reached += load(scores, start + (long long)c * inner) >= own;
    }
    hits[i] = counted[i] && reached - 1 < top_k;
  }
}

// A block for each class.
__global__ void class_counts(const long long* numbers, const bool* chosen, long long* counts,
                             int classes, int n) {
  for EACH_BLOCK(c, classes) {
    int count = 0;
    for EACH_THREAD(i, n) count += chosen[i] && numbers[i] == c;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[c] = count;
  }
}
