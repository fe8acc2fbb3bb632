package serve

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
)

// body returns the request's body, uncompressed and bounded.
func (x *exchange) body() (io.Reader, error) {
	sent := &bodyReader{in: x.r.Body, progress: x.out.progressRead}
	switch encoding := x.r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return sent, nil
	case "gzip", "x-gzip":
		unzipped, err := gzip.NewReader(sent)
		if err != nil {
			return nil, refusef("the request is not in gzip format")
		}
		return &bodyReader{in: unzipped, progress: func() {}}, nil
	default:
		return nil, refusef("unknown encoding %.40q of the request", encoding)
	}
}

// bodyReader reads at most maxRequest bytes.
type bodyReader struct {
	in       io.Reader
	progress func() // called before each read
	read     int
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if b.read > maxRequest {
		return 0, refusef("the request has more than %d bytes", maxRequest)
	}
	b.progress()
	n, err := b.in.Read(p[:min(len(p), maxRequest+1-b.read)])
	b.read += n
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, gzip.ErrChecksum) {
		err = refusef("the request is not in gzip format")
	}
	return n, err
}

// drain reads the rest of the request: most clients send all of it before they read an answer.
func (x *exchange) drain(body io.Reader) {
	_, _ = io.Copy(io.Discard, body)
	x.out.endRead()
}
