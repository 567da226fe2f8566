"""An image classifier: a small convolutional network that tells shapes apart. It needs torch and pillow, and
runs on a CPU as well.

    trunkline agent --gateway URL --join TOKEN --python image_classifier:ImageClassifier
    curl -H "authorization: Bearer KEY" --data-binary @picture.png URL/engines/image-classifier/predict

The network is trained in ``load``, on pictures that it draws itself, which takes a few seconds. To serve a
trained one, read its weights there.
"""

import io
from typing import Any

import torch
from PIL import Image, ImageDraw, UnidentifiedImageError
from torch import nn

from agent.serve import BadRequest, Batch, Model, ModelRequest

LABELS = ("bar", "circle", "cross", "square")
SIZE = 32
STEPS = 60


class ImageClassifier(Model):
    name = "image-classifier"
    max_batch = 16
    max_wait_s = 0.01
    max_body_bytes = 16 * 1024 * 1024

    def load(self, device: str) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self._device = torch.device(device)
        self._network = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (SIZE // 4) ** 2, len(LABELS)),
        ).to(self._device)
        self._train()
        self._network.eval()

    def warm_up(self) -> None:
        self.predict(Batch([torch.zeros(1, SIZE, SIZE)] * self.max_batch))

    def decode(self, request: ModelRequest) -> Any:
        """The picture in grey, from 0 to 1. Runs on a CPU, beside the network."""
        try:
            picture = Image.open(io.BytesIO(request.body)).convert("L").resize((SIZE, SIZE))
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
            raise BadRequest("The body is not a picture.", code="invalid_image") from None
        return _tensor(picture)

    def predict(self, batch: Batch) -> Any:
        with torch.inference_mode():
            pictures = torch.stack(list(batch)).to(self._device)
            return torch.softmax(self._network(pictures), dim=1).cpu()

    def encode(self, output: Any) -> dict[str, Any]:
        scores = dict(zip(LABELS, (round(float(score), 4) for score in output), strict=True))
        return {"label": max(scores, key=lambda label: scores[label]), "scores": scores}

    def _train(self) -> None:
        optimiser = torch.optim.Adam(self._network.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            wanted = torch.randint(len(LABELS), (32,), generator=generator)
            places = torch.randint(8, (32, 3), generator=generator).tolist()
            drawn = [
                _tensor(draw(LABELS[k], *place)) for k, place in zip(wanted.tolist(), places, strict=True)
            ]
            loss = nn.functional.cross_entropy(
                self._network(torch.stack(drawn).to(self._device)), wanted.to(self._device)
            )
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()


def draw(label: str, x: int = 4, y: int = 4, more: int = 4) -> Image.Image:
    """A white shape on black: its place, and how much larger than the smallest it is (0 to 7 each)."""
    picture = Image.new("L", (SIZE, SIZE))
    pen, right, below = ImageDraw.Draw(picture), x + 16 + more, y + 16 + more
    if label == "circle":
        pen.ellipse((x, y, right, below), fill=255)
    elif label == "square":
        pen.rectangle((x, y, right, below), fill=255)
    elif label == "bar":
        pen.rectangle((x, y + 6, right, y + 10), fill=255)
    else:
        pen.line((x, y, right, below), fill=255, width=3)
        pen.line((x, below, right, y), fill=255, width=3)
    return picture


def _tensor(picture: Image.Image) -> Any:
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.reshape(1, SIZE, SIZE).float() / 255.0
