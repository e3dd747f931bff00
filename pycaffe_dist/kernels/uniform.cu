// Uniform random numbers, each a function of a key and its index: the same as in uniform.py.

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
__device__ __forceinline__ unsigned long long mix(unsigned long long value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

template <typename T>
__global__ void uniform(T* out, const unsigned long long* from, int n) {
  const unsigned long long key = *from;
  for EACH(i, n) {
    const unsigned long long bits = mix(key + (i + 1ull) * 0x9E3779B97F4A7C15ull) >> 40;
    store(out, i, Wide<T>(bits) * Wide<T>(1.0 / 16777216.0));
  }
}
