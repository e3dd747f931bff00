// CUDA C in C++: a source that includes this file compiles with a host compiler, and its kernels
// run block by block. The threads of a block run one after the other; in kernels with __syncthreads
// they are fibers that take turns from barrier to barrier.  It is compiled again for each source;
// therefore it includes nothing of C++'s library, and keeps to C++14, whose math.h is half as long.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

struct uint3 { unsigned int x, y, z; };
struct dim3 { unsigned int x = 1, y = 1, z = 1; };

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

#define __global__ static
#define __device__
#define __host__
#define __constant__ static
// Blocks run one after the other, so that one copy serves them all.
#define __shared__ static thread_local
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// One launch; `error` is set when a kernel breaks the rules.
struct Launch {
  unsigned int grid[3], block[3];
  unsigned int shared_bytes;
  int reverse;  // blocks and threads in the opposite order: a different result shows a race
  int error;
};

enum { DIVERGED = 1, UNEXPECTED_BARRIER = 2 };

static thread_local unsigned char* dynamic_shared_ = nullptr;
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(dynamic_shared_)

struct __half { unsigned short bits; };
typedef __half half;

static inline float __half2float(__half h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff;
  float value;
  uint32_t bits;
  if (rest >= 0x7c00) {
    bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    bits = sign | ((rest << 13) + 0x38000000);
  } else {
    value = ldexpf(float(rest), -24);
    return sign ? -value : value;
  }
  memcpy(&value, &bits, 4);
  return value;
}

static inline __half __float2half(float value) {  // to the nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const unsigned short sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return __half{(unsigned short)(sign | 0x7e00)};
  if (bits >= 0x477ff000) return __half{(unsigned short)(sign | 0x7c00)};
  if (bits < 0x38800000) {
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    return __half{(unsigned short)(sign | (unsigned short)lrintf(ldexpf(magnitude, 24)))};
  }
  const uint32_t odd = bits >> 13 & 1;
  return __half{(unsigned short)(sign | (bits + 0xfff + odd - 0x38000000) >> 13)};
}

struct __nv_bfloat16 { unsigned short bits; };

static inline float __bfloat162float(__nv_bfloat16 b) {
  const uint32_t bits = uint32_t(b.bits) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline __nv_bfloat16 __float2bfloat16(float value) {  // to the nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return __nv_bfloat16{0x7fff};
  return __nv_bfloat16{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define __expf expf
#define __logf logf
#define __powf powf
static inline float __fdividef(float x, float y) { return x / y; }
// Products that no compiler joins with a sum.
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
template <typename T> static inline T __ldg(const T* p) { return *p; }
template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return (unsigned int)((unsigned long long)a * b >> 32);
}
static inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
static inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
static inline void __threadfence() {}

// Threads take turns, so that plain reads and writes are atomic.
template <typename T, typename U> static inline T atomicAdd(T* p, U v) { T old = *p; *p = old + T(v); return old; }
template <typename T, typename U> static inline T atomicMax(T* p, U v) { T old = *p; if (T(v) > old) *p = T(v); return old; }
template <typename T, typename U> static inline T atomicMin(T* p, U v) { T old = *p; if (T(v) < old) *p = T(v); return old; }
template <typename T, typename U> static inline T atomicExch(T* p, U v) { T old = *p; *p = T(v); return old; }
template <typename T, typename U, typename V> static inline T atomicCAS(T* p, U expected, V v) {
  T old = *p;
  if (old == T(expected)) *p = T(v);
  return old;
}

// The threads of one block, each with a stack of its own.
class Fibers {
 public:
  static constexpr size_t STACK = 64 << 10;
  static constexpr int LIMIT = 1024;

  // Run `body` once in each of `threads` fibers, in turns from barrier to barrier.
  template <typename Body> void run(const Body& body, int threads, Launch& launch) {
    body_ = [](const void* b) { (*static_cast<const Body*>(b))(); };
    argument_ = &body;
    launch_ = &launch;
    if (fibers_ == nullptr) fibers_ = static_cast<Fiber*>(calloc(LIMIT, sizeof(Fiber)));
    for (; count_ < threads; count_++) {
      fibers_[count_].stack = static_cast<unsigned char*>(malloc(STACK));
    }
    for (int t = 0; t < threads; t++) fibers_[t].running = true;
    bool more = true;
    while (more) {
      int waiting = 0;
      for (int k = 0; k < threads; k++) {
        const int t = launch.reverse ? threads - 1 - k : k;
        if (!fibers_[t].running) continue;
        resume(t);
        waiting += fibers_[t].running;
      }
      more = waiting > 0;
      // On a GPU a barrier that some threads never reach is undefined behaviour.
      if (more && waiting != threads) launch.error = DIVERGED;
    }
  }

  // Called in a fiber: wait until all others are here, too.
  void wait() {
    if (current_ < 0) {
      launch_error(UNEXPECTED_BARRIER);
      return;
    }
    if (!_setjmp(fibers_[current_].place)) _longjmp(scheduler_, 1);
  }

  Launch* launch_ = nullptr;

 private:
  struct Fiber {
    jmp_buf place;
    unsigned char* stack;
    bool started, running;
  };

  void launch_error(int error) { if (launch_) launch_->error = error; }

  static void enter(unsigned int low, unsigned int high) {
    Fibers* self = reinterpret_cast<Fibers*>(uintptr_t(low) | uintptr_t(high) << 16 << 16);
    for (;;) {
      self->body_(self->argument_);
      const int mine = self->current_;
      self->fibers_[mine].running = false;
      if (!_setjmp(self->fibers_[mine].place)) _longjmp(self->scheduler_, 1);
    }
  }

  void resume(int t) {
    current_ = t;
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
    if (!_setjmp(scheduler_)) {
      if (fibers_[t].started) _longjmp(fibers_[t].place, 1);
      fibers_[t].started = true;
      static thread_local ucontext_t start, unused;
      getcontext(&start);
      start.uc_stack.ss_sp = fibers_[t].stack;
      start.uc_stack.ss_size = STACK;
      start.uc_link = nullptr;
      const uintptr_t self = reinterpret_cast<uintptr_t>(this);
      makecontext(&start, reinterpret_cast<void (*)()>(enter), 2, (unsigned int)self,
                  (unsigned int)(self >> 16 >> 16));
      swapcontext(&unused, &start);
    }
    current_ = -1;
  }

  Fiber* fibers_ = nullptr;  // room for as many as a block can have
  int count_ = 0;
  jmp_buf scheduler_;
  int current_ = -1;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
};

static thread_local Fibers fibers;

static inline void __syncthreads() { fibers.wait(); }

// Run `body`, a kernel with its arguments, for every thread of the launch.
template <typename Body> static void emulate(Launch& launch, bool waits, const Body& body) {
  gridDim.x = launch.grid[0], gridDim.y = launch.grid[1], gridDim.z = launch.grid[2];
  blockDim.x = launch.block[0], blockDim.y = launch.block[1], blockDim.z = launch.block[2];
  const unsigned int threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned long long blocks = (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
  const size_t size = launch.shared_bytes + 16;
  unsigned char* shared = static_cast<unsigned char*>(malloc(size));
  dynamic_shared_ = shared + (16 - uintptr_t(shared) % 16) % 16;
  fibers.launch_ = &launch;
  for (unsigned long long k = 0; k < blocks; k++) {
    const unsigned long long b = launch.reverse ? blocks - 1 - k : k;
    blockIdx.x = b % gridDim.x;
    blockIdx.y = b / gridDim.x % gridDim.y;
    blockIdx.z = b / gridDim.x / gridDim.y;
    // A block must not take an earlier block's shared memory for its own.
    memset(shared, 0xff, size);
    if (waits) {
      fibers.run(body, threads, launch);
      continue;
    }
    for (unsigned int j = 0; j < threads; j++) {
      const unsigned int t = launch.reverse ? threads - 1 - j : j;
      threadIdx.x = t % blockDim.x;
      threadIdx.y = t / blockDim.x % blockDim.y;
      threadIdx.z = t / blockDim.x / blockDim.y;
      body();
    }
  }
  free(shared);
}

template <typename A> static inline A argument(void* p) { return *static_cast<A*>(p); }
