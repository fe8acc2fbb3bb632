package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/testenv"
)

// appendForever makes the test binary append and print each line until it is killed.
const appendForever = "SPOOL_TEST_APPEND"

func TestMain(m *testing.M) {
	if dir := os.Getenv(appendForever); dir != "" {
		s, err := Open(dir, 1<<30)
		for n := 0; err == nil; n++ {
			if err = s.Append(context.Background(), fmt.Append(nil, n)); err == nil {
				fmt.Println(n)
			}
		}
		fmt.Println(err)
		os.Exit(1)
	}
	testenv.Main(m)
}

func openSpool(t *testing.T, dir string, maxBytes int64) *Spool {
	t.Helper()
	return testenv.Must(Open(dir, maxBytes))(t)
}

func add(t *testing.T, s *Spool, lines ...string) {
	t.Helper()
	for _, line := range lines {
		testenv.Must(0, s.Append(t.Context(), []byte(line)))(t)
	}
}

// drain returns the deliveries of one pass.
func drain(t *testing.T, s *Spool) (texts []string) {
	t.Helper()
	testenv.Must(s.Drain(func(text []byte, _ bool) (bool, error) {
		texts = append(texts, string(text))
		return false, nil
	}))(t)
	return texts
}

// drainAll returns the deliveries of all passes.
func drainAll(t *testing.T, s *Spool) (texts []string) {
	t.Helper()
	for {
		more := drain(t, s)
		if len(more) == 0 {
			return texts
		}
		texts = append(texts, more...)
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	return testenv.Must(filepath.Glob(filepath.Join(dir, "*")))(t)
}

func TestOrderSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made/by/it")
	s := openSpool(t, dir, 1<<20)
	add(t, s, "a", "b", "c")
	s = openSpool(t, dir, 1<<20)
	add(t, s, "d")
	if got, want := drainAll(t, s), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if s.Waiting() || s.Bytes() != 0 || len(files(t, dir)) != 0 {
		t.Errorf("drained: waiting %v, %d bytes, files %q", s.Waiting(), s.Bytes(), files(t, dir))
	}
}

func TestDrainContinuesWithTheLineThatFailed(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	add(t, s, "a", "b", "c")
	down := errors.New("down")
	var got []string
	for range 2 {
		_, err := s.Drain(func(text []byte, _ bool) (bool, error) {
			if string(text) == "b" {
				return false, down
			}
			got = append(got, string(text))
			return false, nil
		})
		if !errors.Is(err, down) {
			t.Fatal(err)
		}
	}
	add(t, s, "d") // to the next file
	if !s.Waiting() {
		t.Error("nothing waits")
	}
	if got = append(got, drainAll(t, s)...); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("%q", got)
	}
}

func TestKeptDeliveryBlocksNoOther(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	add(t, s, "a", "b")
	var got []string
	pass := func() (more bool) {
		return testenv.Must(s.Drain(func(text []byte, _ bool) (bool, error) {
			got = append(got, string(text))
			return string(text) == "a", nil
		}))(t)
	}
	if more := pass(); !more || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v, %q", more, got)
	}
	if s.Waiting() {
		t.Error("the next ones wait for a delivery that was kept")
	}
	if more := pass(); more || s.Waiting() || s.Bytes() != 2*block {
		t.Errorf("a delivery that was kept: more %v, waiting %v, %d bytes", more, s.Waiting(), s.Bytes())
	}
	if add(t, s, "c"); !s.Waiting() {
		t.Error("a new delivery is not waited for")
	}
	pass()
	if want := []string{"a", "b", "a", "a", "c"}; s.Waiting() || !slices.Equal(got, want) {
		t.Errorf("waiting %v, sent %q, want %q", s.Waiting(), got, want)
	}
	if got := drainAll(t, s); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
}

func TestConcurrentAppendsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<30)
	const appenders, each = 16, 50
	var g errgroup.Group
	for who := range appenders {
		g.Go(func() error {
			for n := range each {
				if err := s.Append(t.Context(), fmt.Appendf(nil, "%02d %02d", who, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	testenv.Must(0, g.Wait())(t)
	got, next := drainAll(t, s), map[string]int{}
	if len(got) != appenders*each {
		t.Fatalf("%d lines, want %d", len(got), appenders*each)
	}
	for _, line := range got {
		who, n, _ := strings.Cut(line, " ")
		if n != fmt.Sprintf("%02d", next[who]) {
			t.Fatalf("%s, want line %02d of its appender", line, next[who])
		}
		next[who]++
	}
}

func TestSendLearnsThatADeliveryWasKept(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	add(t, s, "a")
	var got []bool
	for _, keep := range []bool{true, true, false} {
		testenv.Must(s.Drain(func(_ []byte, again bool) (bool, error) {
			got = append(got, again)
			return keep, nil
		}))(t)
	}
	if testenv.Must(s.Drain(nil))(t); !slices.Equal(got, []bool{false, true, true}) || len(s.kept) != 0 {
		t.Errorf("again %v, still remembered %v", got, s.kept)
	}
}

func TestFullDirectoryTakesLinesAfterADrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const maxBytes = 5 * block
	for range 2 { // also after a restart
		s := openSpool(t, dir, maxBytes)
		if len(files(t, dir)) == 0 {
			add(t, s, "0123456789", "0123456789")
		}
		if err := s.Append(t.Context(), []byte("x")); !errors.Is(err, ErrFull) {
			t.Fatalf("error %v, want ErrFull", err)
		}
	}
	s := openSpool(t, dir, maxBytes)
	another := openSpool(t, dir, maxBytes)
	if got := drainAll(t, s); len(got) != 2 {
		t.Fatalf("%q, want 2 lines", got)
	}
	add(t, s, "x")
	another.counted = time.Time{} // long ago
	add(t, another, "y")
	if err := another.Append(t.Context(), []byte("z")); !errors.Is(err, ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
}

func TestConcurrentAppendsDoNotExceedTheLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const fit = 10
	s := openSpool(t, dir, fit*2*block)
	var g errgroup.Group
	for range 8 * fit {
		g.Go(func() error {
			if err := s.Append(t.Context(), []byte("small")); !errors.Is(err, ErrFull) {
				return err
			}
			return nil
		})
	}
	testenv.Must(0, g.Wait())(t)
	if n := len(files(t, dir)); n != fit || s.Bytes() != fit*2*block || s.reserved != 0 {
		t.Errorf("%d files, %d bytes, and %d reserved; want %d files", n, s.Bytes(), s.reserved, fit)
	}
}

// TestFullDiskFailsAppendsOnly is not parallel, because it limits the size of all files of the process.
func TestFullDiskFailsAppendsOnly(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir, 1<<30)
	add(t, s, "before")
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var was unix.Rlimit
	testenv.Must(0, unix.Getrlimit(unix.RLIMIT_FSIZE, &was))(t)
	testenv.Must(0, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4 << 10, Max: was.Max}))(t)
	err := s.Append(t.Context(), []byte(strings.Repeat("x", 8<<10)))
	testenv.Must(0, unix.Setrlimit(unix.RLIMIT_FSIZE, &was))(t)
	if !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("error %v, want the disk's", err)
	}
	add(t, s, "after")
	s = openSpool(t, dir, 1<<30)
	if got := drainAll(t, s); !slices.Equal(got, []string{"before", "after"}) || len(files(t, dir)) != 0 {
		t.Errorf("%q, left %q", got, files(t, dir))
	}
}

// killAppender runs a process that appends to dir and kills it after it has printed n lines. It returns the number of lines printed.
func killAppender(t *testing.T, dir string, n int) (printed int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), appendForever+"="+dir)
	out := testenv.Must(cmd.StdoutPipe())(t)
	testenv.Must(0, cmd.Start())(t)
	for lines := bufio.NewScanner(out); lines.Scan(); printed++ {
		if printed+1 == n {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	return printed
}

func TestDeliveriesOfDeadProcessesAreDrained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := openSpool(t, dir, 1<<20), openSpool(t, dir, 1<<20)
	add(t, first, "first's")
	add(t, second, "second's")
	printed := killAppender(t, dir, 50)
	got := drainAll(t, second)
	got = slices.DeleteFunc(got, func(text string) bool { return strings.HasSuffix(text, "'s") })
	if len(got) < printed {
		t.Fatalf("%d lines of the dead process, want the %d that were appended", len(got), printed)
	}
	for n, line := range got {
		if line != fmt.Sprint(n) {
			t.Fatalf("line %d is %q", n, line)
		}
	}
	left := slices.DeleteFunc(files(t, dir), func(path string) bool { return strings.Contains(path, disk.TempInfix) }) // the kill's
	if got := append(left, drainAll(t, first)...); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

func TestFileThatWasNotCompletedIsIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "1"+suffix+disk.TempInfix+"2")
	testenv.Must(0, os.WriteFile(path, []byte("half of"), 0o600))(t)
	if got := drainAll(t, openSpool(t, dir, 1<<20)); len(got) != 0 || len(files(t, dir)) != 1 {
		t.Errorf("%q, files %q", got, files(t, dir))
	}
	testenv.Must(0, os.Chtimes(path, time.Time{}, time.Now().Add(-2*time.Hour)))(t)
	if openSpool(t, dir, 1<<20); len(files(t, dir)) != 0 {
		t.Errorf("files %q", files(t, dir))
	}
}

func TestFileThatCannotBeReadBlocksNoOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testenv.Must(0, os.Mkdir(filepath.Join(dir, "0"+suffix), 0o700))(t)
	s := openSpool(t, dir, 1<<20)
	add(t, s, "a")
	var got []string
	for _, want := range []error{syscall.EISDIR, nil} {
		if _, err := s.Drain(func(text []byte, _ bool) (bool, error) {
			got = append(got, string(text))
			return false, nil
		}); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
}

// TestHangingDiskKeepsNobody takes all slots.
func TestHangingDiskKeepsNobody(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	for range atOnce {
		s.slots <- struct{}{}
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := s.Append(ctx, []byte("given up")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want a disk that does not respond", err)
		}
		cancel()
	}
	if s.Waiting() || s.Bytes() != 0 {
		t.Errorf("waiting %v, %d bytes", s.Waiting(), s.Bytes())
	}
	<-s.slots
	add(t, s, "first")
	if got := drainAll(t, s); !slices.Equal(got, []string{"first"}) {
		t.Errorf("%q", got)
	}
}

func TestDirectoryThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	testenv.Must(0, os.WriteFile(path, nil, 0o600))(t)
	for _, dir := range []string{path, filepath.Join(path, "below"), "/proc/self"} {
		if _, err := Open(dir, 1<<20); err == nil || !strings.Contains(err.Error(), "spool: ") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
