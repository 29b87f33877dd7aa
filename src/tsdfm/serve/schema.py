"""What requests and answers look like: OpenAI's completions with fields of our own, and infill.

Fields of OpenAI's that a flow model has no answer to are there with the values that mean nothing, so that a client may
send them; any other value is refused by name. So is every field that is not here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from tsdfm.serve.jobs import Ask
from tsdfm.serve.settings import ServeSettings

SEED = 2**63
GUIDES = Literal["blind", "sequence", "token", "sequence-to-token"]


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Writing(BaseModel):
    """What every request says of how to write; none leaves it to the model."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    n: int | None = None
    steps: int | None = None
    seed: Annotated[int, Field(ge=-SEED, lt=SEED)] | None = Field(None, description="none: one that the answer names")
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = Field(
        None, description="below 1 is safer and narrower, 0 takes the likeliest token"
    )
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="keep the most likely tokens up to this share"
    )
    jump: Annotated[str, Field(max_length=100)] | None = Field(None, description="how a state moves")
    guide: GUIDES | None = Field(None, description="navigate every step by the model's compass")
    stream: bool | None = Field(None, description="every pass as an event, then the text")
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="taken, and not looked at")

    def ask(self, seed: int, **given: Any) -> Ask:
        """The request as the scheduler takes it."""
        dials = {"temperature": self.temperature, "top_p": 1.0 if self.top_p is None else self.top_p}
        how = {"n": self.n or 1, "steps": self.steps, "jump": self.jump or "auto", "guide": self.guide or "blind"}
        return Ask(model=self.model, seed=seed, **how, **dials, **given)  # type: ignore[arg-type]


Stop = Annotated[str, Field(min_length=1, max_length=200)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]  # one wrong text is enough to say so


class CompletionFields(Writing):
    """Texts that begin with the prompt. A row is written whole; `max_tokens` and `stop` cut it."""

    prompt: str | Texts | None = Field(None, description="how texts begin")
    infill: str | Texts | None = Field(None, description="templates, in its place")
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="of what is written; none: the whole row")
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = Field(None, description="where to cut a text")
    echo: bool | None = Field(None, description="with the prompt before each text")
    suffix: None = Field(None, description="not known here, nor are the next five")
    logprobs: None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    best_of: Literal[1] | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None


class InfillFields(Writing):
    """A template with its gaps filled, `{2}` of two tokens, `{1-4}` of one to four."""

    template: str | Texts = Field(description="literals with gaps between them")


def requests(settings: ServeSettings, names: list[Any]) -> tuple[type[CompletionFields], type[InfillFields]]:
    """Both with this server's models and limits, as its OpenAPI document shows them."""
    own: dict[str, Any] = {
        "model": (str, Field(json_schema_extra={"enum": names}, description="one of /v1/models")),
        "n": (
            Annotated[int, Field(ge=1, le=settings.max_n)] | None,
            Field(None, description="texts for each prompt; none: 1"),
        ),
        "steps": (
            Annotated[int, Field(ge=1, le=settings.max_steps)] | None,
            Field(None, description="network passes for each text; none: the model's own"),
        ),
    }
    return (
        create_model("CompletionRequest", __base__=CompletionFields, __doc__=CompletionFields.__doc__, **own),
        create_model("InfillRequest", __base__=InfillFields, __doc__=InfillFields.__doc__, **own),
    )


class Choice(BaseModel):
    """One text. It ends by itself or by `stop`, or because the row or `max_tokens` does."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class Usage(BaseModel):
    """Tokens, and the network passes that were made for all texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    passes: int


class Completion(BaseModel):
    """The answer. With its seed and the same fingerprint, a request gives the same texts again."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    seed: int
    choices: list[Choice]
    usage: Usage | None = None


class Card(BaseModel):
    """A served model; `exact`: a text has the same bits whatever is written beside it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tsdfm"
    method: str
    source: str
    length: int
    steps: int
    temperature: float
    guides: list[str]
    end_of_text: int
    exact: bool
    system_fingerprint: str


class Cards(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Card]


class Problem(BaseModel):
    """What went wrong, and in which field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """As OpenAI's clients read it."""

    error: Problem
