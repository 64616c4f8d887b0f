"""Batch tasks: queued, followed, waiting for each other. They go on when this program ends."""
import virga

prepare = virga.submit("echo preparing; echo 42 > number", name="prepare")
train = virga.submit("echo training with $(cat number)", name="train", after_success=[prepare])

for line in train.logs(follow=True):
    print(line)
print(prepare.wait(), train.wait(), train.result().stdout.strip())
print(train, train.info()["pool"])
