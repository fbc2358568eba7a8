"""What a file may take of memory. Pillow's ``Image.MAX_IMAGE_PIXELS`` limits the pixels of a picture."""

MAX_BYTES = 4 * 2**30  # of the numbers of an array, also where the file that they come from is small
MAX_CLASSES = 1024  # where the labels of a file alone say how many classes there are
