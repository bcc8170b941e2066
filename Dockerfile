# docker build -t attnscope . && docker run --rm -p 8501:8501 attnscope
# For an NVIDIA GPU: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t attnscope .
# and: docker run --rm --gpus all -p 8501:8501 attnscope
FROM python:3.11-slim

# PyTorch's own index; torch alone is taken from it, everything else from pip's default index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

WORKDIR /app
COPY requirements.txt constraints.txt ./
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.txt)" \
    && pip install -r requirements.txt -c constraints.txt

COPY attn_core attn_core
COPY analysis analysis
COPY dashboard dashboard
COPY models models
COPY docs/mechanisms docs/mechanisms
COPY .streamlit .streamlit
COPY LICENSE README.md ./

# The app writes nothing but models that a user asks for; their folder belongs to the user it runs as.
RUN useradd --create-home --uid 10001 attnscope \
    && mkdir .attnscope \
    && chown attnscope .attnscope \
    && python -m compileall -q attn_core analysis dashboard
USER attnscope

# The bundled models are part of the image: the container starts without a network.
RUN python -m analysis bring --all

EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]

CMD ["python", "-m", "streamlit", "run", "dashboard/app.py", "--server.address=0.0.0.0", "--server.port=8501"]
