package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Format is the format of an archive.
type Format string

// The formats.
const (
	TarZst Format = "tar.zst"
	TarGz  Format = "tar.gz"
)

// Version changes whenever the bytes of an archive do, for example with a new version of an encoder.
const Version = "1"

// ParseFormat parses tar.zst, tar.gz, or nothing for tar.zst.
func ParseFormat(text string) (Format, error) {
	switch f := Format(text); f {
	case "":
		return TarZst, nil
	case TarZst, TarGz:
		return f, nil
	}
	return "", fmt.Errorf("format %.20q: want %s or %s", text, TarZst, TarGz)
}

// MediaType returns the media type of the format.
func (f Format) MediaType() string {
	if f == TarGz {
		return "application/gzip"
	}
	return "application/zstd"
}

const (
	outputBuffer = 64 << 10
	zstdWindow   = 1 << 20
)

// epoch is the time of all entries: tar warns of 1970.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Write writes the archive. If it fails, the output is an archive without its end, which no decoder accepts.
func (c *Contents) Write(ctx context.Context, w io.Writer, f Format) error {
	out := bufio.NewWriterSize(w, outputBuffer)
	encoder, release, err := f.encoder(out)
	if err != nil {
		return err
	}
	defer release()
	err = c.writeEntries(ctx, encoder)
	if err == nil {
		_, err = encoder.Write(make([]byte, 2*blockSize)) // the end
	}
	if err != nil {
		return err
	}
	return errors.Join(encoder.Close(), out.Flush())
}

// The modes of files in Git.
const (
	ModeFile       = 0o100644
	ModeExecutable = 0o100755
	ModeLink       = 0o120000
	ModeSubmodule  = 0o160000
)

// altered returns the error for a file that is not as it was built.
func altered(path string, err error) error {
	for _, cause := range []error{nil, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EINVAL, unix.ENXIO, unix.EAGAIN} {
		if errors.Is(err, cause) {
			return fmt.Errorf("%.200q: %w", path, ErrAltered)
		}
	}
	return fmt.Errorf("read %.200q: %w", path, err)
}

var zstdEncoders = sync.Pool{New: func() any {
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // impossible: the options are constants
	}
	return encoder
}}

// encoder returns an encoder that writes to w. Call release after closing it.
func (f Format) encoder(w io.Writer) (encoder io.WriteCloser, release func(), err error) {
	if f == TarGz {
		compressor, err := gzip.NewWriterLevel(w, gzip.DefaultCompression)
		return compressor, func() {}, err
	}
	compressor := zstdEncoders.Get().(*zstd.Encoder)
	compressor.Reset(w)
	return compressor, func() {
		compressor.Reset(nil)
		zstdEncoders.Put(compressor)
	}, nil
}
