"""Images of any kind, as a model with so many channels reads them."""

from PIL.Image import Image


MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by the number of channels


def with_channels(image: Image, channels: int) -> Image:
    """Greyscale, palettes and transparency in the mode of `channels`; of a number without one the image as it is."""
    mode = MODES.get(channels, image.mode)
    if image.mode == mode:
        return image
    return image.convert(mode)
