package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
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
	fileBuffer   = 128 << 10
	zstdWindow   = 1 << 20
)

// epoch is the time of all entries: tar warns of 1970.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Write writes the archive. If it fails, the output is an archive without its end, which no decoder accepts.
func (c *Contents) Write(ctx context.Context, w io.Writer, f Format) error {
	out := bufio.NewWriterSize(w, outputBuffer)
	encoder, err := f.encoder(out)
	if err != nil {
		return err
	}
	if err := c.writeEntries(ctx, tar.NewWriter(encoder)); err != nil {
		return err
	}
	return errors.Join(encoder.Close(), out.Flush())
}

func (c *Contents) writeEntries(ctx context.Context, to *tar.Writer) error {
	at, err := disk.NewWalker(c.tree.Dir())
	if err != nil {
		return fmt.Errorf("open the tree: %w", err)
	}
	defer at.Close()
	buffer := make([]byte, fileBuffer)
	err = c.Each(ctx, func(f checkout.TreeFile) error {
		if f.Mode == ModeGitlink {
			return to.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: f.Path + "/", Mode: 0o755, ModTime: epoch})
		}
		folder, err := at.Enter(disk.Parent(f.Path), disk.Dir.Open)
		if err != nil {
			return altered(f.Path, err)
		}
		if f.Mode == ModeLink {
			target, err := folder.Readlink(path.Base(f.Path))
			if err != nil {
				return altered(f.Path, err)
			}
			return to.WriteHeader(&tar.Header{
				Typeflag: tar.TypeSymlink, Name: f.Path, Linkname: target, Mode: 0o777, ModTime: epoch,
			})
		}
		return writeFile(ctx, to, folder, f, buffer)
	})
	if err != nil {
		return err
	}
	return to.Close()
}

func writeFile(ctx context.Context, to *tar.Writer, folder disk.Dir, f checkout.TreeFile, buffer []byte) error {
	file, size, err := openBuilt(folder, f)
	if err != nil {
		return err
	}
	defer file.Close()
	header := tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: size, Mode: 0o644, ModTime: epoch}
	if f.Mode == ModeExecutable {
		header.Mode = 0o755
	}
	if err := to.WriteHeader(&header); err != nil {
		return err
	}
	n, err := io.CopyBuffer(to, io.LimitReader(content{ctx, f.Path, file}, size), buffer)
	if err != nil {
		return err
	}
	if n < size {
		return altered(f.Path, nil)
	}
	return nil
}

// content reads a file of the tree until ctx is done.
type content struct {
	ctx  context.Context
	path string
	file *os.File
}

func (c content) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.file.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = altered(c.path, err)
	}
	return n, err
}

// Modes in Git, other than that of a plain file.
const (
	ModeExecutable = 0o100755
	ModeLink       = 0o120000
	ModeGitlink    = 0o160000
)

// altered returns the error for a file that is not as it was built.
func altered(path string, err error) error {
	for _, cause := range []error{
		nil, unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EINVAL, unix.ENXIO, unix.EAGAIN,
	} {
		if errors.Is(err, cause) {
			return fmt.Errorf("%.200q: %w", path, ErrAltered)
		}
	}
	return fmt.Errorf("read %.200q: %w", path, err)
}

// encoder returns an encoder that writes to w, in the calling goroutine.
func (f Format) encoder(w io.Writer) (io.WriteCloser, error) {
	if f == TarGz {
		return gzip.NewWriterLevel(w, gzip.DefaultCompression)
	}
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
}
