// Definitions for every kernel source: kernels/cuda/source.py prepends them, for CUDA and for the
// emulation.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifndef INFINITY  // NVRTC has no math.h
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#define DYNAMIC_SHARED(type, name)                                   \
  extern __shared__ __align__(16) unsigned char dynamic_shared_[];   \
  type* name = reinterpret_cast<type*>(dynamic_shared_)
#endif

// A loop over all indices below n, for any grid.  Arrays stay below 2^31 elements.
#define EACH(i, n) \
  (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)

// A loop over n units of work, one for a whole block each.
#define EACH_BLOCK(i, n) (int i = blockIdx.x; i < (n); i += gridDim.x)

// A loop of the threads of a block over n elements.
#define EACH_THREAD(i, n) (int i = threadIdx.x; i < (n); i += blockDim.x)

// A loop over rows that 1 << shift neighbouring threads (at most a block) share, and their loop
// over a row's n elements: for rows too short for a block, and to compute a row's place once for
// many elements.
#define EACH_ROW(row, rows, shift)                                           \
  (int row = (blockIdx.x * blockDim.x + threadIdx.x) >> (shift); row < (rows); \
   row += (gridDim.x * blockDim.x) >> (shift))
#define EACH_IN_ROW(i, n, shift) \
  (int i = threadIdx.x & ((1 << (shift)) - 1); i < (n); i += 1 << (shift))

// The type to compute in, where T is the type to store: float for 16 bits, else T.
template <typename T> struct Computing { typedef T type; };
template <> struct Computing<__half> { typedef float type; };
template <> struct Computing<__nv_bfloat16> { typedef float type; };
template <typename T> using Wide = typename Computing<T>::type;

template <typename T> __device__ __forceinline__ Wide<T> load(const T* p, long long i) { return p[i]; }
template <> __device__ __forceinline__ float load<__half>(const __half* p, long long i) {
  return __half2float(p[i]);
}
template <>
__device__ __forceinline__ float load<__nv_bfloat16>(const __nv_bfloat16* p, long long i) {
  return __bfloat162float(p[i]);
}

template <typename T> __device__ __forceinline__ void store(T* p, long long i, Wide<T> value) {
  p[i] = value;
}
template <> __device__ __forceinline__ void store<__half>(__half* p, long long i, float value) {
  p[i] = __float2half(value);
}
template <>
__device__ __forceinline__ void store<__nv_bfloat16>(__nv_bfloat16* p, long long i, float value) {
  p[i] = __float2bfloat16(value);
}

// The largest power of two that is not above n.
__device__ __forceinline__ int floor_power_of_two(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

// For i, i + step, … below n: store(i, make(i)).  Four elements are made before any is stored.  The
// output may be the input, so the compiler moves no load before a store, and one load at a time for
// each thread uses only half of a large GPU's memory bandwidth. `store` must write at its own index
// only, and `make` must not read what is written at another index.
template <typename Make, typename Store>
__device__ __forceinline__ void four_at_a_time(int i, int step, int n, const Make& make,
                                               const Store& store) {
  for (; i + 3LL * step < n; i += 4 * step) {
    const auto first = make(i), second = make(i + step);
    const auto third = make(i + 2 * step), fourth = make(i + 3 * step);
    store(i, first), store(i + step, second);
    store(i + 2 * step, third), store(i + 3 * step, fourth);
  }
  for (; i < n; i += step) store(i, make(i));
}

// Some neighbouring elements of an array, in the type to compute in.
template <typename T, int N> struct Few { Wide<T> at[N]; };

// The number of elements that a thread handles at a time, and whether they are 16 aligned bytes.
template <int N, bool ALIGNED> struct Width {
  static constexpr int count = N;
  static constexpr bool aligned = ALIGNED;
};

template <typename T, int N> struct __align__(16) Bytes16 { T at[N]; };

// Elements i, i + 1, … of an array; zeros if it is null.
template <typename T, int N, bool ALIGNED>
__device__ __forceinline__ Few<T, N> load_few(Width<N, ALIGNED>, const T* p, int i) {
  Few<T, N> values;
  if (p == nullptr) {
#pragma unroll
    for (int k = 0; k < N; k++) values.at[k] = 0;
  } else if (ALIGNED) {
    const Bytes16<T, N> bytes = *reinterpret_cast<const Bytes16<T, N>*>(p + i);
#pragma unroll
    for (int k = 0; k < N; k++) values.at[k] = load(bytes.at, k);
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) values.at[k] = load(p, i + k);
  }
  return values;
}

template <typename T, int N, bool ALIGNED>
__device__ __forceinline__ void store_few(Width<N, ALIGNED>, T* p, int i, const Few<T, N>& values) {
  if (ALIGNED) {
    Bytes16<T, N> bytes;
#pragma unroll
    for (int k = 0; k < N; k++) store(bytes.at, k, values.at[k]);
    *reinterpret_cast<Bytes16<T, N>*>(p + i) = bytes;
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) store(p, i + k, values.at[k]);
  }
}

// Whether all pointers are null or multiples of 16.
__device__ __forceinline__ bool are_aligned() { return true; }
template <typename T, typename... Others>
__device__ __forceinline__ bool are_aligned(const T* p, const Others*... others) {
  return reinterpret_cast<unsigned long long>(p) % 16 == 0 && are_aligned(others...);
}

// For all indices i below n, some at a time, and for any grid: body(width, i, arguments…).  It should
// use load_few before store_few: an output may be an input.  It is an object whose operator () is a
// template, because NVRTC takes the operator of a lambda with `auto` for a host function.
template <typename T, typename Body, typename... Arguments>
__device__ __forceinline__ void each_few(int n, bool aligned, const Body& body,
                                         const Arguments&... arguments) {
  constexpr int count = 16 / sizeof(T);
  const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int whole = n / count;
  if (aligned) {
    for (int k = first; k < whole; k += step) body(Width<count, true>(), k * count, arguments...);
  } else {
    for (int k = first; k < whole; k += step) body(Width<count, false>(), k * count, arguments...);
  }
  for (int i = whole * count + first; i < n; i += step) body(Width<1, false>(), i, arguments...);
}

template <typename W, typename T, typename Make, typename... Values>
__device__ __forceinline__ void set_few(W width, T* y, int i, const Make& make,
                                        const Values&... values) {
  Few<T, W::count> results;
#pragma unroll
  for (int k = 0; k < W::count; k++) results.at[k] = make(i + k, values.at[k]...);
  store_few(width, y, i, results);
}

struct SetFew {
  template <typename W, typename T, typename Make, typename... X>
  __device__ __forceinline__ void operator()(W width, int i, T* y, const Make& make,
                                             X... x) const {
    set_few(width, y, i, make, load_few(width, x, i)...);
  }
};

// y[i] = make(i, x[i]…) for all indices below n; arrays x are of y's type, and null is zeros.
template <typename T, typename Make, typename... X>
__device__ __forceinline__ void set_each(T* y, int n, const Make& make, const X*... x) {
  each_few<T>(n, are_aligned(y, x...), SetFew(), y, make, x...);
}

// n / d for 0 <= n < 2^31, without a division: `factor` and `bits` are kernels.cuda.division's for d.
__device__ __forceinline__ int divide(int n, unsigned int factor, int bits) {
  return int((unsigned long long)(unsigned int)n * factor >> bits);
}

// The sum of `value` over a block.  All its threads must call this, and all get the sum.  The order
// of the additions depends on the block's size alone.
template <typename T> __device__ T block_sum(T value) {
  __shared__ T parts[1024];
  const int t = threadIdx.x, n = blockDim.x;
  __syncthreads();  // the parts of an earlier call are read
  parts[t] = value;
  __syncthreads();
  for (int half = floor_power_of_two(n - 1 > 0 ? n - 1 : 1); half > 0; half /= 2) {
    if (t < half && t + half < n) parts[t] += parts[t + half];
    __syncthreads();
  }
  return parts[0];
}

// The maximum of `value` over a block.  All its threads must call this, and all get the maximum.
template <typename T> __device__ T block_max(T value) {
  __shared__ T parts[1024];
  const int t = threadIdx.x, n = blockDim.x;
  __syncthreads();
  parts[t] = value;
  __syncthreads();
  for (int half = floor_power_of_two(n - 1 > 0 ? n - 1 : 1); half > 0; half /= 2) {
    if (t < half && t + half < n && parts[t + half] > parts[t]) parts[t] = parts[t + half];
    __syncthreads();
  }
  return parts[0];
}

// Position and value of a wrong element as one number (see kernels.labels); the least number is the
// first position.
__device__ __forceinline__ unsigned long long wrong_code(int position, float value) {
  return (unsigned long long)(unsigned int)position << 32 | (unsigned int)__float_as_int(value);
}
