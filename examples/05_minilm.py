"""MiniLM, a six-layer BERT with its published weights: embeds sentences, ranks them, and shows what fusion saves."""

import numpy as np
from models.bert import encode, load_config, load_weights, published_folder, sentence_encoder

import graphdnn as gd

QUESTION = "How do I keep my bread from going stale?"
ANSWERS = [
    "Store the loaf in a paper bag, cut side down, and freeze what you will not eat in two days.",
    "The stale joke fell flat, and the audience went home early.",
    "A sourdough starter is fed with flour and water once a day.",
    "GPU kernels are launched in the order of their stream.",
    "Bread keeps best in a closed box at room temperature, never in the fridge.",
]
TOKENS = 64

folder = published_folder()
sentences = [QUESTION, *ANSWERS]
graph = sentence_encoder(load_weights(folder, gd.float32), len(sentences), TOKENS, gd.float32, load_config(folder))
exe = gd.compile(graph)
embedding = exe(encode(folder, sentences, TOKENS))["embedding"]
scores = embedding[1:] @ embedding[0]
print(f"computed for {exe.report.target}\n\n{QUESTION}")
for place in np.argsort(-scores):
    print(f"  {scores[place]:.3f}  {ANSWERS[place]}")

half = sentence_encoder(load_weights(folder, gd.float16), len(sentences), TOKENS, gd.float16, load_config(folder))
planned = gd.compile(half, target=gd.Target.named("h200"))
report = planned.report
moved = report.read_bytes + report.written_bytes
print(f"\nthe same graph in float16, planned for an H200 that need not be here\n\n{planned.explain()}")
print(
    f"\nfusion saves {report.unfused_kernel_count - report.kernel_count} of {report.unfused_kernel_count} kernels and "
    f"{(report.unfused_bytes - moved) / 2**20:.1f} of {report.unfused_bytes / 2**20:.1f} MiB"
)
