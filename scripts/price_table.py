#!/usr/bin/env python3
"""Makes crates/egress/data/prices.tsv from the price data in the PyPI package litellm (MIT).

    pip download --no-deps litellm -d target/litellm
    scripts/price_table.py target/litellm/litellm-*.whl

Prices are whole pico-US-dollars per token (1 USD = 10^12). Only what a metered call needs is kept: text models of the
providers below, their cache rates and the dearer rates above a prompt length.
"""

import json
import pathlib
import re
import sys
import zipfile
from decimal import Decimal

DATA = "litellm/model_prices_and_context_window_backup.json"
OUT = pathlib.Path(__file__).parent.parent / "crates/egress/data/prices.tsv"
MODES = {"chat", "completion", "responses", "embedding"}
# The data's provider names, and ours. Where two of theirs are one of ours, the first that has a model wins.
PROVIDERS = {
    "openai": "openai",
    "text-completion-openai": "openai",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "xai": "xai",
    "groq": "groq",
    "together_ai": "together_ai",
    "fireworks_ai": "fireworks_ai",
    "perplexity": "perplexity",
    "cohere_chat": "cohere",
}
TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens$")


def pico(value):
    """A price per token, rounded up: a budget must not be spent by rounding."""
    if value is None:
        return "-"
    exact = Decimal(repr(value) if isinstance(value, float) else str(value)) * 10**12
    return str(int(exact.to_integral_value(rounding="ROUND_CEILING")))


def count(value):
    return str(int(value)) if isinstance(value, (int, float)) and value > 0 else "-"


def tier(entry):
    """The first step up in price: its threshold in tokens and its rates."""
    steps = sorted(int(found[1]) for key in entry if (found := TIER.match(key)))
    if not steps:
        return "-"
    at = f"above_{steps[0]}k_tokens"
    names = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost")
    return ":".join([str(steps[0] * 1000)] + [pico(entry.get(f"{name}_{at}")) for name in names])


def rows(data):
    found = {}
    for key, entry in data.items():
        provider = PROVIDERS.get(entry.get("litellm_provider"))
        priced = entry.get("input_cost_per_token") is not None and entry.get("output_cost_per_token") is not None
        if provider is None or entry.get("mode") not in MODES or not priced:
            continue
        prefix = entry["litellm_provider"] + "/"
        model = key.removeprefix(prefix).removeprefix("cohere/")
        if re.search(r"\s", model) or len(model) > 128:
            continue
        found.setdefault((provider, model), "\t".join([
            provider,
            model,
            pico(entry["input_cost_per_token"]),
            pico(entry["output_cost_per_token"]),
            pico(entry.get("cache_read_input_token_cost")),
            pico(entry.get("cache_creation_input_token_cost")),
            pico(entry.get("cache_creation_input_token_cost_above_1hr")),
            count(entry.get("max_input_tokens")),
            count(entry.get("max_output_tokens")),
            tier(entry),
        ]))
    return [found[key] for key in sorted(found)]


def main():
    wheel = pathlib.Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        data = json.loads(archive.read(DATA))
        notice = next(name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        licence = archive.read(notice).decode().split("---", 1)[1].strip()
    version = wheel.name.split("-")[1]
    lines = [
        "# Prices of models, in pico-US-dollars (10^-12 USD) per token. Made by scripts/price_table.py; do not edit.",
        f"# From {DATA.split('/')[1]} of litellm {version}, whose notice follows.",
        "#",
        *(f"# {line}".rstrip() for line in licence.splitlines()),
        "#",
        "# provider\tmodel\tinput\toutput\tcache_read\tcache_write\tcache_write_1h\tmost_input\tmost_output"
        "\tabove:input:output:cache_read:cache_write",
        *rows(data),
    ]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
