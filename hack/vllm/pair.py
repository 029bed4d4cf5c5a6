"""Makes a target model and a drafter that really speculate, without any download.

Run by vLLM's own Python: `python pair.py FOLDER` writes FOLDER/target and FOLDER/drafter.

The target is a random Llama whose later layers change its answer only a little; the drafter is
the target without them. How much they change it sets how often a draft is accepted, and the
share of the layers that the drafter keeps sets what a draft costs. Bytes are tokens, so that a
prompt's length in tokens is its length in bytes. The last layer can only choose printable ASCII:
a byte is then always whole text for the client, and no request ends before its limit.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261129
HIDDEN = 1024
LAYERS = 6
DRAFTER_LAYERS = 1
LATER_LAYERS_SCALE = 0.25
"""Of the output projections of the layers that the drafter lacks: at this value six of ten first
draft tokens are accepted. Then one draft pays about what it costs on a full server, four do not,
and on a quiet one two or more pay well: what the operator is to find out."""
SHARPNESS = 8.0
"""Of the choice among bytes: at this value the likeliest has a probability near 0.8, so that
a greedy stream does not soon repeat itself."""
NEVER = -200.0

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def config(bytes_: PreTrainedTokenizerFast, layers: int) -> LlamaConfig:
    """Return the shape of a model with this many layers."""
    return LlamaConfig(
        vocab_size=len(bytes_),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=bytes_.bos_token_id,
        eos_token_id=bytes_.eos_token_id,
        pad_token_id=bytes_.pad_token_id,
        dtype="bfloat16",
    )


@torch.no_grad()
def target(bytes_: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the target model, the same one each time."""
    model = LlamaForCausalLM(config(bytes_, LAYERS)).to(torch.bfloat16).eval()
    chance = torch.Generator().manual_seed(SEED)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.copy_(torch.randn(weight.shape, generator=chance) / weight.shape[1] ** 0.5)
    embeddings = model.model.embed_tokens.weight
    embeddings.mul_(HIDDEN**0.5)
    # The first dimension carries a constant that no layer changes, by which the last layer
    # tells bytes that may be chosen from those that may not.
    embeddings[:, 0] = 1.0
    for at, layer in enumerate(model.model.layers):
        for projection in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            projection[0] = 0.0
            if at >= DRAFTER_LAYERS:
                projection.mul_(LATER_LAYERS_SCALE)
    printable = bytes_.encode("".join(map(chr, range(32, 127))))
    head = model.lm_head.weight
    head.mul_(SHARPNESS)
    head[:, 0] = NEVER
    head[printable, 0] = 0.0
    return model


def drafter(of: LlamaForCausalLM, bytes_: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the target's first layers as a model of its own."""
    model = LlamaForCausalLM(config(bytes_, DRAFTER_LAYERS)).to(torch.bfloat16).eval()
    kept = model.state_dict().keys()
    model.load_state_dict({name: w for name, w in of.state_dict().items() if name in kept})
    return model


def main() -> None:
    """Write both models, each with the tokenizer."""
    folder = Path(sys.argv[1])
    bytes_ = tokenizer()
    large = target(bytes_)
    for name, model in (("target", large), ("drafter", drafter(large, bytes_))):
        model.save_pretrained(folder / name)
        bytes_.save_pretrained(folder / name)
        # vLLM 0.32 on CPUs loses a request's temperature where it verifies drafts, so a request
        # that names none must not be sampled.
        (folder / name / "generation_config.json").write_text('{"temperature": 0.0}\n')


if __name__ == "__main__":
    main()
