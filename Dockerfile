# docker build -t edgespec .
# docker run --rm -it edgespec chat
# docker run --rm -p 8080:8080 -e EDGESPEC_API_KEY=... -v models:/models edgespec \
#     serve --host 0.0.0.0 -m /models/model.gguf --memory 4GiB

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY edgespec ./edgespec
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[hub,server,schema]" && rm -r /wheels \
    && useradd --create-home --uid 1000 edgespec \
    && mkdir /data && chown edgespec /data
USER edgespec
# Compiled kernels, downloaded models and what drafters learned outlive a container with -v NAME:/data.
ENV EDGESPEC_CACHE=/data/cache EDGESPEC_DATA=/data/user HF_HOME=/data/huggingface
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["edgespec"]
CMD ["--help"]
