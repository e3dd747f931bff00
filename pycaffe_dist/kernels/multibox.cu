// The losses of predicted boxes and of their classes, and their gradients.
#include "boxes.cuh"

enum { CORNERS = 3, COLUMNS = 8 };

// What locations are compared with, and how: kernels/multibox.py's Location.  The priors' boxes are
// those of all images, or those of each.
template <typename P> struct Goals {
  const P *boxes, *variances, *label;
  int code, count;
  bool variance_in_target, inside, decoded, same_boxes;
};

template <typename P>
__device__ __forceinline__ P difference(P own, P goal, P variance, P place,
                                        bool variance_in_target, bool inside) {
  if (inside && (place < 0 || place > 1)) return P(0);
  return variance_in_target ? own / variance - goal / variance : own - goal;
}

// The predicted numbers of prior p, in `row` of all images' priors, minus those of its label.
template <typename P>
__device__ Box<P> differences(const Goals<P>& goals, const Box<P>& own, int row, int p, int match) {
  const Box<P> prior = box_at(goals.boxes, goals.same_boxes ? p : row);
  const Box<P> v = box_at(goals.variances, p);
  const P* corners = goals.label + (long long)match * COLUMNS + CORNERS;
  const Box<P> box = {corners[0], corners[1], corners[2], corners[3]};
  const bool in_target = goals.variance_in_target, inside = goals.inside;
  const Box<P> goal = encode_box(prior, v, box, goals.code, in_target);
  Box<P> place = prior;
  if (inside && goals.decoded) place = decode_box(prior, v, own, goals.code, in_target);
  return {difference(own.a, goal.a, v.a, place.a, in_target, inside),
          difference(own.b, goal.b, v.b, place.b, in_target, inside),
          difference(own.c, goal.c, v.c, place.c, in_target, inside),
          difference(own.d, goal.d, v.d, place.d, in_target, inside)};
}

template <typename P> __device__ __forceinline__ P cost(P d, bool squares) {
  const P size = d < 0 ? -d : d;
  return squares || size < 1 ? d * d / 2 : size - P(0.5);
}

template <typename P> __device__ __forceinline__ P slope(P d, bool squares) {
  return squares || !(d >= 1 || d <= -1) ? d : d > 0 ? P(1) : P(-1);
}

// A thread for each prior of an image; `own` classes have matches of their own.
template <typename T, typename P>
__global__ void location_losses(const T* numbers, const P* boxes, const P* variances,
                                const P* label, const int* kind, const int* matches, int code,
                                bool variance_in_target, bool squares, bool inside, bool decoded,
                                P* losses, bool same_boxes, int count, int classes, int own,
                                int n) {
  const Goals<P> goals = {boxes,  variances, label, code, count, variance_in_target, inside, decoded,
                          same_boxes};
  for EACH(row, n) {
    const int image = row / count, p = row - image * count;
    P loss = 0;
    for (int c = 0; c < own; c++) {
      const int match = matches[((long long)image * own + c) * count + p];
      if (match < 0) continue;
      const int k = classes > 1 ? kind[match] : 0;
      const Box<P> v = box_at(numbers, (long long)row * classes + k);
      const Box<P> d = differences(goals, v, row, p, match);
      loss += cost(d.a, squares) + cost(d.b, squares) + cost(d.c, squares) + cost(d.d, squares);
    }
    losses[row] = loss;
  }
}

template <typename T, typename P>
__global__ void location_gradient(const T* numbers, const P* boxes, const P* variances,
                                  const P* label, const int* kind, const int* matches, int code,
                                  bool variance_in_target, bool squares, bool inside, bool decoded,
                                  double weight, const double* normalizer, T* gradient,
                                  bool same_boxes, int count, int classes, int own, int n) {
  const Goals<P> goals = {boxes,  variances, label, code, count, variance_in_target, inside, decoded,
                          same_boxes};
  const P factor = P(weight / normalizer[0]);
  for EACH(row, n) {
    const int image = row / count, p = row - image * count;
    for (int k = 0; k < 4 * classes; k++) store(gradient, 4LL * row * classes + k, P(0));
    for (int c = 0; c < own; c++) {
      const int match = matches[((long long)image * own + c) * count + p];
      if (match < 0) continue;
      const long long place = (long long)row * classes + (classes > 1 ? kind[match] : 0);
      const Box<P> d = differences(goals, box_at(numbers, place), row, p, match);
      store(gradient, 4 * place, factor * slope(d.a, squares));
      store(gradient, 4 * place + 1, factor * slope(d.b, squares));
      store(gradient, 4 * place + 2, factor * slope(d.c, squares));
      store(gradient, 4 * place + 3, factor * slope(d.d, squares));
    }
  }
}

__global__ void prior_classes(const int* matches, const int* kind, int background, int* classes,
                              int count, int own, int n) {
  for EACH(row, n) {
    const int image = row / count, p = row - image * count;
    int found = background;
    for (int c = 0; c < own; c++) {
      const int match = matches[((long long)image * own + c) * count + p];
      if (match >= 0) found = kind[match];
    }
    classes[row] = found;
  }
}

// The largest score of a row, and the sum of the exponentials of all scores minus it.
template <typename T>
__device__ void scan(const T* scores, long long first, int classes, Wide<T>* largest,
                     Wide<T>* total) {
  Wide<T> most = load(scores, first), sum = 0;
  for (int c = 1; c < classes; c++) most = max(most, load(scores, first + c));
  for (int c = 0; c < classes; c++) sum += exp(load(scores, first + c) - most);
  *largest = most, *total = sum;
}

// A thread for each row.
template <typename T, typename P>
__global__ void softmax_losses(const T* scores, const int* labels, P* losses, double smallest,
                               int classes, int rows) {
  for EACH(row, rows) {
    const long long first = (long long)row * classes;
    Wide<T> largest, total;
    scan(scores, first, classes, &largest, &total);
    const Wide<T> own = exp(load(scores, first + labels[row]) - largest) / total;
    losses[row] = -log(own < smallest ? Wide<T>(smallest) : own);  // a NaN stays
  }
}

template <typename T>
__global__ void softmax_gradients(const T* scores, const int* labels, const bool* counted,
                                  double weight, const double* normalizer, T* gradient,
                                  int classes, int rows) {
  const Wide<T> factor = Wide<T>(weight / normalizer[0]);
  for EACH(row, rows) {
    const long long first = (long long)row * classes;
    if (!counted[row]) {
      for (int c = 0; c < classes; c++) store(gradient, first + c, Wide<T>(0));
      continue;
    }
    Wide<T> largest, total;
    scan(scores, first, classes, &largest, &total);
    for (int c = 0; c < classes; c++) {
      const Wide<T> own = exp(load(scores, first + c) - largest) / total;
      store(gradient, first + c, factor * (own - (c == labels[row] ? Wide<T>(1) : Wide<T>(0))));
    }
  }
}

template <typename P>
__global__ void one_hot(const int* labels, P* targets, int classes, int n) {
  for EACH(i, n) targets[i] = i % classes == labels[i / classes] ? P(1) : P(0);
}

// The ones of kernels/multibox.py's unmined_targets, a thread for each match.
template <typename P>
__global__ void unmined_targets(const int* matches, const int* kind, P* targets, int count, int own,
                                int classes, int n) {
  for EACH(i, n) {
    const int image = i / (own * count), p = i % count;
    if (matches[i] >= 0) {
      targets[(long long)image * count + (long long)p * classes + kind[matches[i]]] = P(1);
    }
  }
}

// A thread for each row.
template <typename T, typename P>
__global__ void logistic_losses(const T* scores, const P* targets, P* losses, int classes,
                                int rows) {
  for EACH(row, rows) {
    P loss = 0;
    for (int c = 0; c < classes; c++) {
      const P x = load(scores, (long long)row * classes + c);
      loss += log1p(exp(x < 0 ? x : -x)) + (x < 0 ? P(0) : x) -
              x * targets[(long long)row * classes + c];
    }
    losses[row] = loss;
  }
}

template <typename T, typename P>
__global__ void logistic_gradients(const T* scores, const P* targets, const bool* counted,
                                   double weight, const double* normalizer, T* gradient,
                                   int classes, int n) {
  const P factor = P(weight / normalizer[0]);
  for EACH(i, n) {
    const P own = 1 / (1 + exp(-P(load(scores, i))));
    store(gradient, i, counted[i / classes] ? factor * (own - targets[i]) : P(0));
  }
}

// The weighted sum of an image's losses, and its matches.  A block for each image.
template <typename P>
__global__ void image_losses(const P* location, const P* classes, const int* matches,
                             const bool* counted, double location_weight, double class_weight,
                             double* losses, long long* found, int count, int own, int images) {
  for EACH_BLOCK(n, images) {
    const long long first = (long long)n * count;
    double boxes = 0, scores = 0;
    int matched = 0;
    for EACH_THREAD(p, count) {
      boxes += location[first + p];
      if (counted[first + p]) scores += classes[first + p];
    }
    for EACH_THREAD(i, own * count) matched += matches[first * own + i] >= 0;
    boxes = block_sum(boxes), scores = block_sum(scores), matched = block_sum(matched);
    if (threadIdx.x > 0) continue;
    // A NaN must not come from a loss that does not count.
    losses[n] = (location_weight != 0 ? location_weight * boxes : 0.0) +
                (class_weight != 0 ? class_weight * scores : 0.0);
    found[n] = matched;
  }
}
