"""What versions of vLLM do with a schedule, as data.

Read in vLLM 0.32.0 and 0.33.0 (``v1/worker/gpu_model_runner.py``, ``v1/worker/gpu/spec_decode/``,
``config/vllm.py``). The first row that matches answers, so exceptions stand before rules.
"""

from specschedule.core.matrix import Device, GraphMode, MatrixRow

_BOTH = ["0.32.0", "0.33.0"]
_OWN: list[Device] = ["cpu", "cuda", "rocm"]
"""Devices of vLLM's own model runners; plugins for others bring theirs."""

_FULL: list[GraphMode] = ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]

ROWS: tuple[MatrixRow, ...] = (
    MatrixRow(
        id="vllm#48944",
        tested=_BOTH,
        before="0.34.0",
        rows="contexts",
        option="speculative_token_schedule",
        effect="Refuses",
        symptom="five-number rows are in no release up to 0.33.0; the engine wants three",
    ),
    MatrixRow(
        id="vllm#45963",
        tested=_BOTH,
        since="0.26.0",
        layouts=["data"],
        effect="Disables",
        symptom="the engine switches the schedule off, as ranks that choose apart would deadlock",
    ),
    MatrixRow(
        id="cpu-sampling-under-speculation",
        tested=["0.32.0"],
        since="0.32.0",
        before="0.33.0",
        devices=["cpu"],
        random=True,
        effect="Corrupts",
        symptom="the CPU backend loses the temperature of requests that verify drafts, so "
        "speculative arms return garbage above temperature 0; set spec.load.sampling.temperature "
        "to 0",
    ),
    MatrixRow(
        id="v1-fixed-length-methods",
        tested=["0.32.0"],
        before="0.33.0",
        methods=["suffix", "medusa", "extract_hidden_states", "ngram_gpu"],
        runners=["V1"],
        rows="varying",
        effect="Crashes",
        symptom="the drafter asserts its full length and the engine dies at the first step with "
        "another K",
    ),
    MatrixRow(
        id="v1-auto-disable",
        tested=["0.33.0"],
        since="0.33.0",
        methods=["suffix", "medusa", "extract_hidden_states", "ngram_gpu", "custom_class"],
        runners=["V1"],
        effect="Disables",
        symptom="the engine switches the schedule off and drafts a fixed number of tokens",
    ),
    MatrixRow(
        id="vllm-ascend#12368",
        tested=_BOTH,
        methods=["suffix"],
        effect="Crashes",
        symptom="suffix drafting chooses its own length per request and takes no schedule",
    ),
    MatrixRow(
        id="vllm-ascend#16637",
        tested=[],
        devices=["npu"],
        rows="varying",
        effect="LosesGraphs",
        symptom="a schedule switches off the token padding that full graphs need there: at 16 in "
        "flight others kept a third of the throughput",
    ),
    MatrixRow(
        id="v1-piecewise",
        tested=_BOTH,
        devices=["cuda", "rocm"],
        runners=["V1"],
        graph_modes=_FULL,
        effect="LosesGraphs",
        symptom="on model runner V1 a schedule forces CUDA graph mode PIECEWISE",
    ),
    MatrixRow(
        id="single-token-decode-graphs",
        tested=["0.32.0"],
        backends=["FLASHINFER", "CUTLASS_MLA"],
        devices=["cuda"],
        graph_modes=_FULL,
        effect="MayLoseGraphs",
        symptom="this attention backend has full CUDA graphs for one token per request only "
        "(FLASHINFER where it has no TRT-LLM decode kernels, CUTLASS_MLA always): with a schedule "
        "or without, speculation takes PIECEWISE, and the control without speculation does not",
    ),
    MatrixRow(
        id="custom-class",
        tested=["0.32.0"],
        methods=["custom_class"],
        effect="Ignores",
        symptom="a custom drafter is not told K; its drafts are cut after",
    ),
    MatrixRow(
        id="step3p5-without-zero",
        tested=["0.32.0"],
        methods=["step3p5_mtp"],
        runners=["V1"],
        rows="zero",
        effect="Ignores",
        symptom="the drafter of Step 3.5 (v1/spec_decode/step3p5.py) knows no K=0 and drafts one "
        "token there all the same; leave rows of K=0 out",
    ),
    MatrixRow(
        id="v1-honours",
        tested=_BOTH,
        devices=_OWN,
        methods=["ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash"],
        runners=["V1"],
        effect="Honours",
        symptom="drafting follows K; at K=0 eagle-type drafters still run one pass",
    ),
    MatrixRow(
        id="v2-autoregressive",
        tested=_BOTH,
        devices=_OWN,
        methods=["eagle", "eagle3"],
        runners=["V2"],
        effect="Honours",
        symptom="drafting follows K with graphs for each; one drafter pass stays at K=0",
    ),
    MatrixRow(
        id="v2-mtp",
        tested=_BOTH,
        devices=_OWN,
        methods=["mtp"],
        runners=["V2"],
        effect="MayTruncate",
        symptom="a drafter of one MTP module follows K; one of several (num_nextn_predict_layers "
        "in the model's config.json) runs its full length, and the rest is cut before verification",
    ),
    MatrixRow(
        id="v2-truncates",
        tested=_BOTH,
        devices=_OWN,
        methods=["draft_model", "dflash", "dspark", "ngram", "ngram_gpu"],
        runners=["V2"],
        effect="TruncatesOnly",
        symptom="the drafter runs its full length and the rest is cut before verification",
    ),
)
