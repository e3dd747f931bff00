// Boxes that predictions mean.
#include "boxes.cuh"

// A thread for each prediction: image, prior, class.
template <typename T, typename P>
__global__ void decode_boxes(const T* numbers, const P* priors, const P* variances, int code,
                             bool variance_in_target, P* boxes, int count, int classes, int n) {
  for EACH(i, n) {
    const int row = i / classes, c = i - row * classes;
    const int image = row / count, p = row - image * count;
    const Box<Wide<T>> own = box_at(numbers, i);
    const Box<P> box = decode_box(box_at(priors, p), box_at(variances, p),
                                  Box<P>{own.a, own.b, own.c, own.d}, code, variance_in_target);
    P* target = boxes + 4 * (((long long)image * classes + c) * count + p);
    target[0] = box.a, target[1] = box.b, target[2] = box.c, target[3] = box.d;
  }
}
