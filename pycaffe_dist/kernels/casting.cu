// Copies between numbers of 16 bits and the numbers that are computed with.

template <typename T>
__global__ void widen(const T* narrow, Wide<T>* wide, int n) {
  set_each(wide, n, [=](int i) { return load(narrow, i); });
}

template <typename T>
__global__ void narrow(const Wide<T>* wide, T* narrow, int n) {
  set_each(narrow, n, [=](int i) { return wide[i]; });
}

template <typename T>
__global__ void add_narrow(const T* narrow, Wide<T>* wide, int n) {
  set_each(wide, n, [=](int i) { return wide[i] + load(narrow, i); });
}
