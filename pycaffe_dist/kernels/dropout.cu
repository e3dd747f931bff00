// Dropout: the same function of key and element number as on the CPU.

__device__ __forceinline__ unsigned int mixed(unsigned int value, unsigned int key) {
  value ^= key;
  value = (value ^ value >> 16) * 0x85EBCA6Bu;
  value = (value ^ value >> 13) * 0xC2B2AE35u;
  return value ^ value >> 16;
}

template <typename T>
__global__ void dropout(const T* x, T* y, const unsigned long long* key, unsigned int threshold,
                        Wide<T> scale, int n) {
  const unsigned int low = *key, high = *key >> 32;
  const auto dropped = [=](int i, Wide<T> value) {
    const bool kept = mixed(mixed(i, low), high) >= threshold;
    return value * (kept ? scale : Wide<T>(0));
  };
  set_each(y, n, dropped, x);
}
