"""One file a layout. They are asked in the order of import; `folder` takes what is left."""

from saywhy.data.readers import flickr8k, karpathy, coco, folder  # noqa: F401, I001
