// One tile of C = A B a block: operands go through shared memory in Acc, each thread keeps TM x TN sums in registers.
// While a tile is multiplied, the next one is on its way from memory into registers, and from there to the other half
// of shared memory.
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int RUN_M = TM < 4 ? TM : 4;  // neighbours in one row of shared memory, moved together
constexpr int RUN_N = TN < 4 ? TN : 4;
constexpr int PAD = 4;
constexpr int A_GROUPS = BM * BK / (THREADS * VA);
constexpr int B_GROUPS = BN * BK / (THREADS * VB);
static_assert(A_GROUPS * THREADS * VA == BM * BK && B_GROUPS * THREADS * VB == BN * BK, "a tile divides among the threads");

// Which row of the tile a thread's sum i belongs to: runs of neighbours, spread over the tile.
__device__ __forceinline__ int row_of(int thread, int i) {
    return i / RUN_M * (BM / TM * RUN_M) + thread * RUN_M + i % RUN_M;
}
__device__ __forceinline__ int column_of(int thread, int j) {
    return j / RUN_N * (BN / TN * RUN_N) + thread * RUN_N + j % RUN_N;
}

// Group e of an operand's tile: its place (across, k), neighbours along k or across it, whichever is dense in memory.
template <int WIDTH, int VECTOR, bool ALONG_K> struct Tile {
    static __device__ __forceinline__ int k(int e) { return ALONG_K ? e % (BK / VECTOR) * VECTOR : e / (WIDTH / VECTOR); }
    static __device__ __forceinline__ int across(int e) {
        return ALONG_K ? e / (BK / VECTOR) : e % (WIDTH / VECTOR) * VECTOR;
    }
    template <class T>
    static __device__ __forceinline__ Pack<T, VECTOR> fetch(const T* p, Index at, Index step, bool inside, bool wide) {
        Pack<T, VECTOR> x;
        if (VECTOR > 1 && inside && wide) return load_pack<T, VECTOR>(p + at, true);
        _Pragma("unroll") for (int j = 0; j < VECTOR; ++j) {
            if (inside) x.at[j] = p[at + j * step];
            else x.at[j] = narrow<T>((Acc)0);
        }
        return x;
    }
    template <class T>
    static __device__ __forceinline__ void keep(Acc (*shared)[WIDTH + PAD], int e, Pack<T, VECTOR> x) {
        _Pragma("unroll") for (int j = 0; j < VECTOR; ++j) {
            shared[k(e) + (ALONG_K ? j : 0)][across(e) + (ALONG_K ? 0 : j)] = (Acc)widen(x.at[j]);
        }
    }
};
typedef Tile<BM, VA, A_ALONG_K> TileA;
typedef Tile<BN, VB, B_ALONG_K> TileB;
