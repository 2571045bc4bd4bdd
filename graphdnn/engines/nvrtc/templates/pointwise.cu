// What pointwise expressions call.  Integers wrap: they are computed without a sign, where overflow is defined.
template <class T> struct Unsigned { typedef unsigned type; };
template <> struct Unsigned<i64> { typedef unsigned long long type; };
template <class T> __device__ __forceinline__ T wrapping_add(T a, T b) {
    typedef typename Unsigned<T>::type U;
    return (T)((U)a + (U)b);
}
template <class T> __device__ __forceinline__ T wrapping_sub(T a, T b) {
    typedef typename Unsigned<T>::type U;
    return (T)((U)a - (U)b);
}
template <class T> __device__ __forceinline__ T wrapping_mul(T a, T b) {
    typedef typename Unsigned<T>::type U;
    return (T)((U)a * (U)b);
}
// Rounded toward zero; 0 where b is 0; the least integer by -1 wraps.
template <class T> __device__ __forceinline__ T whole_div(T a, T b) {
    if (b == (T)0) return (T)0;
    return b == (T)-1 && (T)-1 < (T)0 ? wrapping_sub((T)0, a) : (T)(a / b);
}
template <class T> __device__ __forceinline__ T whole_mod(T a, T b) {
    return b == (T)0 || (b == (T)-1 && (T)-1 < (T)0) ? (T)0 : (T)(a % b);
}
// NaN if either is.
template <class T> __device__ __forceinline__ T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T smaller(T a, T b) { return a < b || a != a ? a : b; }
// NaN stays.
template <class T> __device__ __forceinline__ T clamped(T x, T low, T high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}
// log(1 + e ** x)
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ double softplus(double x) { return fmax(x, 0.) + log1p(exp(-fabs(x))); }
