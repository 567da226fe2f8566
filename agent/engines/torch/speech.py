"""Transcription of recordings, one at a time, by models such as Whisper."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from agent.engines.torch.errors import InvalidRequest, request_error
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.recordings import read_recording
from agent.engines.torch.speech_requests import TranscriptionRequest


class SpeechTranscript(NamedTuple):
    text: str
    tokens: int
    duration_s: float


class Transcriber:
    """Writes down what is said. Its thread computes one recording after the other."""

    def __init__(self, model: LoadedModel) -> None:
        self.requests = 0
        """Being computed, or waiting for it."""
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="speech")

    def stop(self) -> None:
        """Take nothing more; the thread ends after the recording it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def transcribe(self, request: TranscriptionRequest, recording: bytes) -> SpeechTranscript:
        """Raises a RequestError. When it is cancelled, computing ends with the next token."""
        left = threading.Event()
        self.requests += 1
        try:
            running = asyncio.get_running_loop().run_in_executor
            return await running(self._thread, self._transcribe, request, recording, left)
        finally:
            left.set()
            self.requests -= 1

    def _transcribe(
        self, request: TranscriptionRequest, recording: bytes, left: threading.Event
    ) -> SpeechTranscript:
        model = self._model
        rate = model.processor.feature_extractor.sampling_rate
        samples, duration_s = read_recording(recording, rate)
        options = self._options(request)
        long = duration_s > model.processor.feature_extractor.chunk_length
        # A recording longer than the model's window is cut where the model's own time stamps say.
        how = {"truncation": False, "padding": "longest"} if long else {}
        given = model.processor.feature_extractor(
            samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True, **how
        )
        try:
            with torch.inference_mode():
                found = model.network.generate(
                    given.input_features.to(model.device, model.network.dtype),
                    attention_mask=given.attention_mask.to(model.device),
                    stopping_criteria=[lambda ids, scores: _all(ids, left.is_set())],
                    **({"return_timestamps": True} if long else {}),
                    **options,
                )
        except Exception as error:
            raise request_error(error) from error
        ids = found[0].tolist()
        text = model.tokenizer.decode(ids, skip_special_tokens=True)
        return SpeechTranscript(str(text).strip(), len(ids), duration_s)

    def _options(self, request: TranscriptionRequest) -> dict[str, Any]:
        generation = self._model.network.generation_config
        languages: Mapping[str, int] = getattr(generation, "lang_to_id", None) or {}
        options: dict[str, Any] = {}
        if request.language is not None:
            known = [name.strip("<|>") for name in languages]
            if request.language not in known:
                wanted = (
                    f"one of {', '.join(sorted(known))}" if known else "left out: the model knows one only"
                )
                raise InvalidRequest(f"language must be {wanted}.", param="language")
            options["language"] = request.language
        if languages:
            options["task"] = "transcribe"
        if request.prompt:
            options["prompt_ids"] = self._prompt_ids(request.prompt)
        if request.temperature:
            options |= {"do_sample": True, "temperature": request.temperature}
        return options

    def _prompt_ids(self, prompt: str) -> torch.Tensor:
        """Of a prompt that is too long its end, as OpenAI's models take it. Raises InvalidRequest."""
        try:
            ids = self._model.processor.get_prompt_ids(prompt, return_tensors="pt")
        except ValueError as error:  # it holds a token that is no text
            raise InvalidRequest(f"prompt cannot be taken: {error}", param="prompt") from error
        most = self._model.network.config.max_target_positions // 2 - 1
        return torch.cat((ids[:1], ids[1:][-most:]))


def _all(ids: torch.Tensor, ended: bool) -> torch.Tensor:
    return torch.full((ids.size(0),), ended, dtype=torch.bool, device=ids.device)
