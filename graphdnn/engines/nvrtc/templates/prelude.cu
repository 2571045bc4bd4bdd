// Element types as they lie in memory, and their values in registers: float for the halves, bool for b8, else the same.
struct alignas(2) f16 { unsigned short bits; };
struct alignas(2) bf16 { unsigned short bits; };
struct b8 { unsigned char bits; };
typedef float f32;
typedef double f64;
typedef signed char i8;
typedef unsigned char u8;
typedef int i32;
typedef long long i64;

// The first statement of every kernel, which may be launched while those before it still run: lets the next one be
// launched as early, then waits until they are done and what they wrote can be read.
__device__ __forceinline__ void wait_for_predecessors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// widen: from memory type to register type.
__device__ __forceinline__ float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ bool widen(b8 x) { return x.bits != 0; }
__device__ __forceinline__ float widen(f32 x) { return x; }
__device__ __forceinline__ double widen(f64 x) { return x; }
__device__ __forceinline__ i8 widen(i8 x) { return x; }
__device__ __forceinline__ u8 widen(u8 x) { return x; }
__device__ __forceinline__ i32 widen(i32 x) { return x; }
__device__ __forceinline__ i64 widen(i64 x) { return x; }

// narrow<T>: from any register type to memory type T, rounded once, to nearest even; to integers toward zero.  A float
// beyond an integer type's range gives the nearest end of it, as the conversion instruction does, and NaN gives 0; an
// integer loses its upper bits.
template <class T> struct Narrow {
    template <class V> static __device__ __forceinline__ T from(V x) { return (T)x; }
};
template <> struct Narrow<i32> {
    static __device__ __forceinline__ i32 from(float x) { return __float2int_rz(x); }
    static __device__ __forceinline__ i32 from(double x) { return x == x ? __double2int_rz(x) : 0; }
    template <class V> static __device__ __forceinline__ i32 from(V x) { return (i32)x; }
};
template <> struct Narrow<i64> {
    static __device__ __forceinline__ i64 from(float x) { return x == x ? __float2ll_rz(x) : 0; }
    static __device__ __forceinline__ i64 from(double x) { return x == x ? __double2ll_rz(x) : 0; }
    template <class V> static __device__ __forceinline__ i64 from(V x) { return (i64)x; }
};
template <> struct Narrow<i8> {
    static __device__ __forceinline__ i8 from(float x) { return (i8)max(-128, min(127, Narrow<i32>::from(x))); }
    static __device__ __forceinline__ i8 from(double x) { return (i8)max(-128, min(127, Narrow<i32>::from(x))); }
    template <class V> static __device__ __forceinline__ i8 from(V x) { return (i8)x; }
};
template <> struct Narrow<u8> {
    static __device__ __forceinline__ u8 from(float x) { return (u8)max(0, min(255, Narrow<i32>::from(x))); }
    static __device__ __forceinline__ u8 from(double x) { return (u8)max(0, min(255, Narrow<i32>::from(x))); }
    template <class V> static __device__ __forceinline__ u8 from(V x) { return (u8)x; }
};
template <> struct Narrow<b8> {
    template <class V> static __device__ __forceinline__ b8 from(V x) { return b8{(unsigned char)(x != (V)0)}; }
};
template <> struct Narrow<f16> {
    static __device__ __forceinline__ f16 from(float x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
    static __device__ __forceinline__ f16 from(double x) {
        f16 y;
        asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
        return y;
    }
    template <class V> static __device__ __forceinline__ f16 from(V x) { return from((float)x); }
};
template <> struct Narrow<bf16> {
    static __device__ __forceinline__ bf16 from(float x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
    // Rounded to odd in float32 first, so that the second rounding cannot see a false tie.
    static __device__ __forceinline__ bf16 from(double x) {
        float y = __double2float_rz(x);
        unsigned bits = __float_as_uint(y);
        if ((double)y != x && x == x) bits |= 1u;
        return from(__uint_as_float(bits));
    }
    template <class V> static __device__ __forceinline__ bf16 from(V x) { return from((float)x); }
};
template <class T, class V> __device__ __forceinline__ T narrow(V x) { return Narrow<T>::from(x); }

// One element, and N neighbours at once.  A pack moves in pieces of up to 16 bytes where `wide` says that its address
// allows it, else element by element.
template <class T> __device__ __forceinline__ auto load(const T* p) { return widen(*p); }
template <class T, class V> __device__ __forceinline__ void store(T* p, V x) { *p = narrow<T>(x); }

template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack { T at[N]; };

template <class T, int N> __device__ __forceinline__ Pack<T, N> load_pack(const T* p, bool wide) {
    Pack<T, N> x;
    if (wide) {
        x = *reinterpret_cast<const Pack<T, N>*>(p);
    } else {
        _Pragma("unroll") for (int i = 0; i < N; ++i) x.at[i] = p[i];
    }
    return x;
}
template <class T, int N> __device__ __forceinline__ void store_pack(T* p, Pack<T, N> x, bool wide) {
    if (wide) {
        *reinterpret_cast<Pack<T, N>*>(p) = x;
    } else {
        _Pragma("unroll") for (int i = 0; i < N; ++i) p[i] = x.at[i];
    }
}
// Whether every address is a multiple of `bytes`, a power of two.
template <class... P> __device__ __forceinline__ bool aligned(int bytes, P... p) {
    return (((unsigned long long)p | ... | 0ull) & (unsigned long long)(bytes - 1)) == 0;
}
