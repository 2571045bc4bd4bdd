// Folding numbers into one, in a fixed order: within a vector, a warp, a block, and down a stack of threads.
struct Sum {
    template <class V> static __device__ __forceinline__ V of(V a, V b) { return a + b; }
};
// NaN wins; one instruction for float, where it matters.
struct Largest {
    template <class V> static __device__ __forceinline__ V of(V a, V b) { return a > b || a != a ? a : b; }
    static __device__ __forceinline__ float of(float a, float b) {
        float y;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
        return y;
    }
};
struct Least {
    template <class V> static __device__ __forceinline__ V of(V a, V b) { return a < b || a != a ? a : b; }
    static __device__ __forceinline__ float of(float a, float b) {
        float y;
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
        return y;
    }
};

// The lanes of a vector as a tree: short chains, small rounding errors.
template <class F, int N, class V> __device__ __forceinline__ V fold_vector(V (&x)[N]) {
    _Pragma("unroll") for (int step = N / 2; step; step /= 2) {
        _Pragma("unroll") for (int i = 0; i < step; ++i) x[i] = F::of(x[i], x[i + step]);
    }
    return x[0];
}
// Neighbouring threads, a power of two up to 32; each gets the result.
template <class F, int THREADS, class V> __device__ __forceinline__ V fold_warp(V x) {
    _Pragma("unroll") for (int step = THREADS / 2; step; step /= 2) {
        x = F::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}
// All warps of the block; each thread gets the result.  ID tells calls apart: none waits for another's numbers.
template <int ID, class F, int WARPS, class V> __device__ __forceinline__ V fold_block(V x) {
    __shared__ V part[WARPS];
    x = fold_warp<F, 32>(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    V y = part[0];
    _Pragma("unroll") for (int i = 1; i < WARPS; ++i) y = F::of(y, part[i]);
    return y;
}
// Threads that stand above one another: block index = member * LANES + lane.  Each gets the results of its lane.
template <class F, int LANES, int MEMBERS, int N, class V> __device__ __forceinline__ void fold_stack(V (&x)[N]) {
    if (MEMBERS == 1) return;
    __shared__ V part[MEMBERS][N][LANES];
    const int lane = threadIdx.x % LANES, member = threadIdx.x / LANES;
    _Pragma("unroll") for (int i = 0; i < N; ++i) part[member][i][lane] = x[i];
    __syncthreads();
    _Pragma("unroll") for (int i = 0; i < N; ++i) {
        V y = part[0][i][lane];
        for (int m = 1; m < MEMBERS; ++m) y = F::of(y, part[m][i][lane]);
        x[i] = y;
    }
    __syncthreads();
}
// a / b for many a as two products, without a branch: `near` is a power of two that brings b where its inverse is exact to
// a rounding, and 1 almost always.  Where a * near overflows or vanishes, so does the quotient.
__device__ __forceinline__ float near(float b) {
    const float size = fabsf(b);
    return size < 1e-30f ? 0x1p64f : size > 1e30f ? 0x1p-64f : 1.f;
}
__device__ __forceinline__ float inverse(float b, float near_b) { return 1.f / (b * near_b); }
__device__ __forceinline__ float divided(float a, float near_b, float inverse_b) { return a * near_b * inverse_b; }
