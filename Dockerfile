# docker build -t registry.example/ccbench:latest . (in a checkout)
FROM python:3.12-slim AS build
COPY . /src
RUN python -m venv /opt/ccbench \
    && /opt/ccbench/bin/pip install --no-cache-dir -c /src/constraints/tested.txt '/src[cuda13]'

FROM python:3.12-slim
COPY --from=build /opt/ccbench /opt/ccbench
ENV PATH=/opt/ccbench/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
CMD ["ccbench", "doctor"]
