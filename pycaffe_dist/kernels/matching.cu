// Which prior box predicts which labelled box, and which priors count in a loss.
#include "boxes.cuh"

enum { UNMATCHED = -1, OUTSIDE = -2 };
// The columns of a labelled box.
enum { IMAGE = 0, CLASS = 1, CORNERS = 3, DIFFICULT = 7, COLUMNS = 8 };

template <typename P> __device__ __forceinline__ bool is_finite(P x) { return x - x == 0; }

// The first column of a label that is wrong, or -1.
template <typename P>
__device__ int wrong_column(const P* row, int images, int classes, int background, bool agnostic) {
  // A NaN is in no range.
  if (!(row[IMAGE] > -2 && row[IMAGE] < images)) return IMAGE;
  if (int(row[IMAGE]) == -1) return -1;
  if (!(row[CLASS] > -1 && row[CLASS] < (agnostic ? 2147483520.0f : float(classes)))) return CLASS;
  if (int(row[CLASS]) == background) return CLASS;
  for (int k = CORNERS; k < CORNERS + 4; k++) {
    if (!is_finite(row[k])) return k;
  }
  return -1;
}

template <typename P>
__global__ void read_labels(const P* label, int images, int classes, int background, bool agnostic,
                            bool difficult, int* owner, int* kind, unsigned long long* wrong,
                            int rows) {
  for EACH(r, rows) {
    const P* row = label + (long long)r * COLUMNS;
    const int column = wrong_column(row, images, classes, background, agnostic);
    if (column >= 0) atomicMin(wrong, wrong_code(r * COLUMNS + column, float(row[column])));
    const bool counts =
        column < 0 && int(row[IMAGE]) >= 0 && (difficult || int(row[DIFFICULT]) == 0);
    owner[r] = counts ? int(row[IMAGE]) : -1;
    kind[r] = !counts ? -1 : agnostic ? background + 1 : int(row[CLASS]);
  }
}

// A thread for each number of priors (2, count, 4).
template <typename P>
__global__ void check_priors(const P* priors, bool sized, unsigned long long* wrong, int count) {
  for EACH(i, 8 * count) {
    const P value = priors[i];
    bool fits = is_finite(value);
    if (i >= 4 * count) fits = fits && value > 0;
    else if (sized && i % 4 >= 2) fits = fits && value > priors[i - 2];
    if (!fits) atomicMin(wrong, wrong_code(i, float(value)));
  }
}

template <typename P>
__device__ __forceinline__ P free_overlap(const P* boxes, int p, const Box<P>& box, int match) {
  const P value = match == UNMATCHED ? overlap(box_at(boxes, p), box) : P(0);
  return value > 1e-6 ? value : P(0);
}

// The free box that overlaps a label most, the first of equal ones, and by how much, found by all
// threads of a block.  Also keeps each box's largest overlap, and with which label, if asked to.
template <typename P>
__device__ void find_best(const P* boxes, const P* label, int row, const int* match, int priors,
                          P* overlaps, int* nearest, int* best, P* largest) {
  const Box<P> box = {label[0], label[1], label[2], label[3]};
  P most = 0;
  int place = priors;
  for EACH_THREAD(p, priors) {
    const P value = free_overlap(boxes, p, box, match[p]);
    if (value > most) most = value, place = p;
    if (overlaps && value > overlaps[p]) overlaps[p] = value, nearest[p] = row;
  }
  const P top = block_max(most);
  const int first = -block_max(most == top ? -place : -priors);
  if (threadIdx.x == 0) best[row] = first, largest[row] = top;
}

// A block for each image, and class if classes match their own labels.  `best` and `largest` have a
// place for each label, `nearest` one for each box.
template <typename P>
__global__ void match_boxes(const P* boxes, const P* label, const int* owner, const int* kind,
                            bool per_class, bool per_prediction, double threshold, bool inside,
                            int* matches, P* overlaps, int* nearest, int* best, P* largest,
                            bool same_boxes, int classes, int priors, int rows, int places) {
  for EACH_BLOCK(place, places) {
    const int n = place / classes, c = place - n * classes;
    const long long first = (long long)place * priors;
    const P* own = boxes + 4LL * (same_boxes ? c : place) * priors;
    int* match = matches + first;
    for EACH_THREAD(p, priors) {
      match[p] = inside && crosses_border(box_at(own, p)) ? OUTSIDE : UNMATCHED;
      overlaps[first + p] = 0;
    }
    for (int r = 0; r < rows; r++) {
      if (owner[r] != n || (per_class && kind[r] != c)) continue;
      find_best(own, label + (long long)r * COLUMNS + CORNERS, r, match, priors, overlaps + first,
                nearest + first, best, largest);
    }
    for (;;) {
      __syncthreads();
      int chosen = -1;
      for (int r = 0; r < rows; r++) {
        if (owner[r] != n || (per_class && kind[r] != c) || !(largest[r] > 0)) continue;
        if (chosen < 0 || largest[r] > largest[chosen]) chosen = r;
      }
      if (chosen < 0) break;
      const int taken = best[chosen];
      __syncthreads();
      if (threadIdx.x == 0) match[taken] = chosen, largest[chosen] = 0;
      __syncthreads();
      for (int r = 0; r < rows; r++) {
        if (owner[r] != n || (per_class && kind[r] != c)) continue;
        const bool again = largest[r] > 0 && best[r] == taken;
        __syncthreads();  // all have read what the first thread changes
        if (again) {
          find_best(own, label + (long long)r * COLUMNS + CORNERS, r, match, priors, (P*)0,
                    (int*)0, best, largest);
        }
      }
    }
    if (!per_prediction) continue;
    for EACH_THREAD(p, priors) {
      const P value = overlaps[first + p];
      if (match[p] == UNMATCHED && value > 0 && value >= threshold) match[p] = nearest[first + p];
    }
  }
}

// How many keys of a block are at least `least`, and below `end` in place; negative ones are none.
__device__ int count_keys(const float* keys, int least, int most, int end) {
  int count = 0;
  for EACH_THREAD(p, end) {
    const int bits = __float_as_int(keys[p]);
    count += bits >= least && bits <= most;
  }
  return block_sum(count);
}

// Finds the `number` largest of keys that are not negative, of equal ones the first: all keys above
// `limit`, and those equal to it before `end`.  The bits of such floats are in their order.
__device__ void find_limit(const float* keys, int priors, int number, int* limit, int* end) {
  const int infinity = 0x7f800000;
  int least = 0;
  for (int bit = 1 << 30; bit > 0; bit /= 2) {
    if (count_keys(keys, least | bit, infinity, priors) >= number) least |= bit;
  }
  const int left = number - count_keys(keys, least + 1, infinity, priors);
  int low = 0, high = priors;  // the least end with enough equal keys before it
  while (low < high) {
    const int middle = (low + high) / 2;
    if (count_keys(keys, least, least, middle) >= left) high = middle;
    else low = middle + 1;
  }
  *limit = least, *end = low;
}

__device__ __forceinline__ bool is_within(float key, int p, int limit, int end) {
  const int bits = __float_as_int(key);
  return bits > limit || (bits == limit && p < end);
}

// Marks up to `number` of the largest keys whose boxes overlap no better one by more than
// `threshold`.  Changes the keys.
template <typename P>
__device__ void choose_apart(const P* boxes, float* keys, int priors, int number, double threshold,
                             bool* chosen) {
  for EACH_THREAD(p, priors) {
    if (area(box_at(boxes, p)) < 1e-5) keys[p] = -1;
  }
  for (int k = 0; k < number; k++) {
    float most = -1;
    int place = priors;
    for EACH_THREAD(p, priors) {
      if (keys[p] > most) most = keys[p], place = p;
    }
    const float top = block_max(most);
    if (top < 0) return;
    const int best = -block_max(most == top ? -place : -priors);
    const Box<P> box = box_at(boxes, best);
    for EACH_THREAD(p, priors) {
      if (p == best) chosen[p] = true;
      if (p == best || !(overlap(box_at(boxes, p), box) <= P(threshold))) keys[p] = -1;
    }
  }
}

// A block for each image; `keys` is (images, priors).
template <typename P>
__global__ void mine(const P* boxes, const int* owner, const P* overlaps, const bool* allowed,
                     bool hard, int sample, float ratio, double most_overlap, double suppression,
                     int top_k, int* matches, P* class_losses, P* location_losses, bool* counted,
                     float* keys, bool same_boxes, int priors, int rows, int images) {
  for EACH_BLOCK(n, images) {
    const long long first = (long long)n * priors;
    int* match = matches + first;
    float* key = keys + first;
    bool* chosen = counted + first;
    int labels = 0, positives = 0, eligible = 0;
    for EACH_THREAD(r, rows) labels += owner[r] == n;
    for EACH_THREAD(p, priors) {
      const float loss = float(class_losses[first + p] + location_losses[first + p]);
      const bool fits =
          allowed[first + p] &&
          (hard || (match[p] == UNMATCHED && overlaps[first + p] < most_overlap));
      key[p] = !fits ? -1.0f : loss == loss ? max(loss, 0.0f) : INFINITY;
      chosen[p] = false;
      positives += match[p] >= 0;
      eligible += fits;
    }
    labels = block_sum(labels), positives = block_sum(positives), eligible = block_sum(eligible);
    if (labels == 0) continue;
    int number = hard ? sample : int(float(positives) * ratio), limit = 0, end = priors;
    number = min(number, eligible);
    // Before a suppression, all but top_k go.
    const int kept = suppression <= 0 ? number : top_k < 0 ? eligible : min(top_k, eligible);
    if (kept > 0 && number > 0) {
      find_limit(key, priors, kept, &limit, &end);
      for EACH_THREAD(p, priors) {
        const bool within = is_within(key[p], p, limit, end);
        if (suppression <= 0) chosen[p] = within;
        else if (!within) key[p] = -1;
      }
      if (suppression > 0) {
        choose_apart(boxes + (same_boxes ? 0 : 4 * first), key, priors, number, suppression, chosen);
      }
    }
    for EACH_THREAD(p, priors) {
      if (match[p] >= 0 && hard && !chosen[p]) {
        match[p] = UNMATCHED, location_losses[first + p] = 0;
      } else if (match[p] != UNMATCHED) {
        chosen[p] = match[p] >= 0;
      }
    }
  }
}
