// One filter a channel.  A thread computes TH x TW neighbouring results for VC neighbouring channels; the filters of a
// block's channels lie in shared memory.  A row of the input goes through registers once for all the TH rows of results
// that it counts in, each element of it read and widened once for all the taps.
constexpr int SPAN = (TW - 1) * STEP_W + (KW - 1) * DILATE_W + 1;
constexpr int ROWS = TH == 1 ? KH : (TH - 1) * STEP_H + KH;
static_assert(TH == 1 || DILATE_H == 1, "rows between the taps would be read for nothing");

// VC neighbouring channels as they lie in memory: halves stay two to a register until they are used.
template <class T, int N> struct Held {
    Pack<T, N> pack;
    __device__ __forceinline__ Held(const T* p, bool inside, bool wide) {
        _Pragma("unroll") for (int j = 0; j < N; ++j) pack.at[j] = narrow<T>((Acc)0);
        if (inside) pack = load_pack<T, N>(p, wide);
    }
    __device__ __forceinline__ Acc at(int j) const { return (Acc)widen(pack.at[j]); }
};
template <class T, int N> struct Pairs {
    struct alignas(2 * N) Words { unsigned of[N / 2]; } words = {};
    __device__ __forceinline__ Pairs(const T* p, bool inside, bool wide) {
        if (inside && wide) {
            words = *reinterpret_cast<const Words*>(p);
        } else if (inside) {
            _Pragma("unroll") for (int j = 0; j < N; ++j) words.of[j / 2] |= (unsigned)p[j].bits << (j % 2 * 16);
        }
    }
    __device__ __forceinline__ Acc at(int j) const {
        return widen(T{(unsigned short)(words.of[j / 2] >> (j % 2 * 16))});
    }
};
template <> struct Held<f16, 2> : Pairs<f16, 2> { using Pairs::Pairs; };
template <> struct Held<f16, 4> : Pairs<f16, 4> { using Pairs::Pairs; };
template <> struct Held<bf16, 2> : Pairs<bf16, 2> { using Pairs::Pairs; };
template <> struct Held<bf16, 4> : Pairs<bf16, 4> { using Pairs::Pairs; };

__device__ __forceinline__ void keep_filters(Acc (*filters)[LANES * VC], const TB* w, int first_channel) {
    for (int e = threadIdx.x; e < KH * KW * LANES * VC; e += THREADS) {
        const int c = FILTER_DENSE ? e / (KH * KW) : e % (LANES * VC);
        const int tap = FILTER_DENSE ? e % (KH * KW) : e / (LANES * VC);
        if (first_channel + c < C) {
            const Index at = (Index)(first_channel + c) * W_C + (Index)(tap / KW) * W_H + (Index)(tap % KW) * W_W;
            filters[tap][c] = (Acc)load(w + at);
        }
    }
    __syncthreads();
}

// Adds one row of the input times one row of the filter.
__device__ __forceinline__ void add_row(Acc (*sum)[VC], const Acc (*x)[VC], const Acc* filter) {
    _Pragma("unroll") for (int k = 0; k < KW; ++k) {
        const auto f = *reinterpret_cast<const Pack<Acc, VC>*>(filter + k * (LANES * VC));
        _Pragma("unroll") for (int t = 0; t < TW; ++t) {
            _Pragma("unroll") for (int j = 0; j < VC; ++j) sum[t][j] += x[t * STEP_W + k * DILATE_W][j] * f.at[j];
        }
    }
}
