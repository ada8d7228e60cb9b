"""Width d and rank r of the matrices behind the authors' published scores, by model id: facts of the models' configurations.

Of the rows that read weights wrongly, these are the sizes of what was read: LLaMA's query heads met the wrong key heads
(r stays n_kv_head * d_head), and thirds of a fused weight are [d, d].
"""

import re

# (pattern of the whole id, d, r); the first that fits; r = d if not given
SHAPES = [
    (r"tinygpt-1m|.*TinyStories-1M", 64),
    (r"bert-tiny|.*_H-128_.*|.*pythia-14m|tinygpt-3m|.*TinyStories-3M", 128),
    (r".*deit-tiny.*", 192),
    (r"bert-mini|.*_H-256_.*|.*s2t-small.*|tinygpt-8m|.*TinyStories-8M|.*detr-resnet.*|.*mask2former.*", 256),
    (r".*whisper-tiny|.*deit-small.*|.*dino-vits.*|.*dinov2-small", 384),
    (r".*t5-v1_1-small", 512, 384),
    (r"bert-small|bert-medium|.*_H-512_.*|.*s2t-medium.*|.*pythia-70m|.*t5-small|tinygpt-28m|.*TinyStories-28M", 512),
    (r".*imagegpt-small", 512),
    (r".*MobileLLM-125M", 576, 192),
    (r".*MobileLLM-350M", 960, 320),
    (r".*MobileLLM-600M", 1152, 384),
    (r".*MobileLLM-1B", 1280, 320),
    (r".*MobileLLM-1.5B", 1600, 320),
    (r".*t5-3b", 1024, 4096),
    (r".*t5-11b", 1024, 16384),
    (r".*t5-v1_1-xl", 2048),
    (r"llama3-8b|llama3.1-8b|.*Llama-3-8B|.*Llama-3.1-8B|.*Mistral-7B.*", 4096, 1024),
    (r"llama3.2-8b|llama3.2-1b|.*Llama-3.2-1B", 2048, 512),
    (r"llama3.2-3b|.*Llama-3.2-3B", 3072, 1024),
    (r".*Llama-2-70b-hf|.*Llama-3-70B|.*Llama-3.1-70B", 8192, 1024),
    (r".*Llama-3.1-405B", 16384, 1024),
    (r".*Mixtral-8x22B.*", 6144, 1024),
    (r"llama2-7b|.*Llama-2-7b.*", 4096),
    (r"llama2-13b|.*Llama-2-13b.*", 5120),
    (r".*Phi-3-mini.*", 3072),
    (r".*phi-2|gpt-neo-2.7b|.*gpt-neo-2.7B", 2560),
    (r".*phi-1|.*phi-1_5|gpt-neo-1.3b|.*gpt-neo-1.3B|.*pythia-1b|.*pythia-1.4b|.*albert-xlarge.*|.*musicgen.*large", 2048),
    (r".*albert-xxlarge.*|.*gpt-j-6[bB]", 4096),
    (r"gpt2-xl.*", 1600),
    (r".*musicgen.*medium|.*deberta-v2.*|.*dinov2-giant|.*imagegpt-large", 1536),
    (r".*hubert-xlarge.*|.*mms-(1b|lid).*|.*whisper-large.*|gpt2-large|.*Llama-3.2-11B-Vision|.*-huge.*", 1280),
    (r".*musicgen.*small|.*mbart.*|.*whisper-medium|.*mms-300m|tinygpt-21m|.*1Layer-21M|gpt2-medium|.*imagegpt-medium", 1024),
    (
        r".*pythia-410m|.*(hubert|s2t|unispeech-sat|wavlm|bart|bert|roberta|deberta|dinov2|beit|dit|git|vit|t5|t5-v1_1)-large.*",
        1024,
    ),
    (r".*BERT-large|.*(vit-mae|ModernBERT)-large", 1024),
    (
        r"gpt1|gpt2|openai-gpt|gpt2-distill|.*distilgpt2|gpt-neo-125m|.*gpt-neo-125m|.*pythia-160m|.*whisper-small|.*speecht5.*",
        768,
    ),
    (r".*dino-vitb.*|bert-distill|.*-base.*", 768),
]


# the ids of MusicGen's encoder, which is T5-base, are those of its decoder
FAMILIES = {"MusicGenEncoder": (768, 768)}


def shape_of(family: str, model_id: str) -> tuple[int, int]:
    """d and r of every layer of a published row."""
    if family in FAMILIES:
        return FAMILIES[family]
    for pattern, d, *r in SHAPES:
        if re.fullmatch(pattern, model_id):
            return d, (*r, d)[0]
    raise LookupError(f"no shape of {model_id} is known")
