// Moving boxes of elements.  Elements are unsigned integers of their size: nothing is computed, so types do not matter.
template <class E, int V> __device__ __forceinline__ Pack<E, V> splat(E x) {
    Pack<E, V> y;
    _Pragma("unroll") for (int j = 0; j < V; ++j) y.at[j] = x;
    return y;
}
// A negative index counts from the end; outside, the nearest end.
__device__ __forceinline__ i64 held_inside(i64 i, i64 extent) {
    i = i < 0 ? i + extent : i;
    return i < 0 ? 0 : i >= extent ? extent - 1 : i;
}
__device__ __forceinline__ i64 held_start(i64 start, i64 last) { return start < 0 ? 0 : start > last ? last : start; }

__device__ __forceinline__ int at_most(int most, i64 left) { return left < most ? (int)left : most; }

// A tile of `rows` by `columns` elements, at most D by S: in memory `in` its rows are dense, in `out` its columns.
// Groups of VI and VO elements move at once.  FLAT: the rows (columns) lie one behind the other, so that groups run on
// from one to the next.  PITCH is an odd number of banks.
template <class E, class Index, int S, int D, int PITCH, int VI, int VO, bool FLAT_IN, bool FLAT_OUT, int THREADS>
__device__ __forceinline__ void turn_tile(E* tile, const E* in, E* out, Index in_row, Index out_column, int rows,
                                          int columns, bool wide_in, bool wide_out) {
    constexpr int IN_GROUPS = FLAT_IN ? (S * D + VI - 1) / VI : D * ((S + VI - 1) / VI);
    constexpr int OUT_GROUPS = FLAT_OUT ? (S * D + VO - 1) / VO : S * ((D + VO - 1) / VO);
    constexpr int IN_ROUNDS = (IN_GROUPS + THREADS - 1) / THREADS, OUT_ROUNDS = (OUT_GROUPS + THREADS - 1) / THREADS;
    Pack<E, VI> held[IN_ROUNDS];
    _Pragma("unroll") for (int r = 0; r < IN_ROUNDS; ++r) {
        const int g = r * THREADS + threadIdx.x;
        const int d = FLAT_IN ? 0 : g / ((S + VI - 1) / VI), s = FLAT_IN ? g * VI : g % ((S + VI - 1) / VI) * VI;
        const int count = FLAT_IN ? rows * S - s : d < rows ? columns - s : 0;
        const E* p = in + (d * in_row + s);
        if (VI > 1 && wide_in && count >= VI) held[r] = load_pack<E, VI>(p, true);
        else {
            _Pragma("unroll") for (int j = 0; j < VI; ++j) if (j < count) held[r].at[j] = p[j];
        }
    }
    _Pragma("unroll") for (int r = 0; r < IN_ROUNDS; ++r) {
        const int g = r * THREADS + threadIdx.x;
        if (g >= IN_GROUPS) continue;
        _Pragma("unroll") for (int j = 0; j < VI; ++j) {
            const int e = g * VI + j;
            const int d = FLAT_IN ? e / S : g / ((S + VI - 1) / VI);
            const int s = FLAT_IN ? e % S : g % ((S + VI - 1) / VI) * VI + j;
            if (d < D && s < S) tile[d * PITCH + s] = held[r].at[j];
        }
    }
    __syncthreads();
    _Pragma("unroll") for (int r = 0; r < OUT_ROUNDS; ++r) {
        const int g = r * THREADS + threadIdx.x;
        const int s = FLAT_OUT ? 0 : g / ((D + VO - 1) / VO), d = FLAT_OUT ? g * VO : g % ((D + VO - 1) / VO) * VO;
        const int count = FLAT_OUT ? columns * D - d : s < columns ? rows - d : 0;
        if (count <= 0) continue;
        Pack<E, VO> turned;
        _Pragma("unroll") for (int j = 0; j < VO; ++j) {
            const int at = FLAT_OUT ? (d + j) % D * PITCH + (d + j) / D : (d + j) * PITCH + s;
            turned.at[j] = j < count ? tile[at] : (E)0;
        }
        E* p = out + (s * out_column + d);
        if (VO > 1 && wide_out && count >= VO) store_pack<E, VO>(p, turned, true);
        else {
            _Pragma("unroll") for (int j = 0; j < VO; ++j) if (j < count) p[j] = turned.at[j];
        }
    }
}

// V neighbouring pixels of P channels each.
template <class E, int V, int P> struct Pixels { E at[V * P]; };

template <bool B> struct Flag { static constexpr bool value = B; };

// `count` of V pixels: C channels, `plane` apart in memory, and `fill` behind them.  W pixels move at once, which divides
// `count`; where W > 1 pixels are neighbours in memory.  No load stands behind a branch: what is not there is read as the
// first pixel, and not stored.
template <class E, int V, int P, int C, int W, class Index>
__device__ __forceinline__ Pixels<E, V, P> gather_pixels(const E* in, Index plane, Index pixel, int count, E fill) {
    Pixels<E, V, P> held;
    _Pragma("unroll") for (int c = 0; c < P; ++c) {
        _Pragma("unroll") for (int v = 0; v < V; v += W) {
            const int first = v < count ? v : 0;
            if constexpr (W > 1) {
                const Pack<E, W> some = c < C ? load_pack<E, W>(in + (c * plane + first), true) : splat<E, W>(fill);
                _Pragma("unroll") for (int j = 0; j < W; ++j) held.at[(v + j) * P + c] = some.at[j];
            } else {
                held.at[v * P + c] = c < C ? in[c * plane + first * pixel] : fill;
            }
        }
    }
    return held;
}

// The same pixels to dense memory, W elements at once, which divides `count * P`.
template <class E, int V, int P, int W>
__device__ __forceinline__ void scatter_pixels(E* out, const Pixels<E, V, P>& held, int count) {
    _Pragma("unroll") for (int i = 0; i < V * P; i += W) {
        if (i >= count * P) continue;
        Pack<E, W> some;
        _Pragma("unroll") for (int j = 0; j < W; ++j) some.at[j] = held.at[i + j];
        store_pack<E, W>(out + i, some, true);
    }
}
