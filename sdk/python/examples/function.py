"""Functions on the cloud: what they return, print and raise."""
import os

import virga


@virga.function(cpus=0.5)
def area(width, height):
    print("in task", os.environ.get("VIRGA_TASK_ID", "none: this is here"))
    if width < 0:
        raise ValueError(f"a width of {width}")
    return width * height


if __name__ == "__main__":  # the task imports this file, too
    print(area.remote(3, height=4))

    later = area.spawn(5, 6)  # goes on while this does something else
    print(area(7, 8), "was made here")
    print(later.result(), "was made there")

    try:
        area.remote(-1, 1)
    except ValueError as e:
        print("it raised:", e)
        print("there:", str(e.__cause__).strip().splitlines()[-2])
