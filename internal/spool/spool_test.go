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

func shut(t *testing.T, s *Spool) {
	t.Helper()
	testenv.Must(0, s.Close())(t)
}

func add(t *testing.T, s *Spool, lines ...string) {
	t.Helper()
	for _, line := range lines {
		testenv.Must(0, s.Append(t.Context(), []byte(line)))(t)
	}
}

// drain returns the lines of one file that has any.
func drain(t *testing.T, s *Spool) (lines []string) {
	t.Helper()
	for more := true; more && len(lines) == 0; {
		more = testenv.Must(s.Drain(func(text []byte) ([]byte, error) {
			lines = append(lines, string(text))
			return nil, nil
		}))(t)
	}
	return lines
}

// drainAll returns the lines of all files.
func drainAll(t *testing.T, s *Spool) (lines []string) {
	t.Helper()
	for {
		more := drain(t, s)
		if len(more) == 0 {
			return lines
		}
		lines = append(lines, more...)
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
	shut(t, s)
	if err := s.Append(t.Context(), []byte("late")); err == nil {
		t.Error("a closed spool takes a line")
	}
	s = openSpool(t, dir, 1<<20)
	add(t, s, "d")
	if got, want := drainAll(t, s), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if s.Waiting() || s.Bytes() != 0 || len(files(t, dir)) != 0 {
		t.Errorf("drained: waiting %v, %d bytes, files %q", s.Waiting(), s.Bytes(), files(t, dir))
	}
	shut(t, s)
}

func TestDrainContinuesWithTheLineThatFailed(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	add(t, s, "a", "b", "c")
	down := errors.New("down")
	var got []string
	for range 2 {
		_, err := s.Drain(func(text []byte) ([]byte, error) {
			if string(text) == "b" {
				return nil, down
			}
			got = append(got, string(text))
			return nil, nil
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
	shut(t, s)
}

func TestLineThatIsKeptIsLast(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 5) // it is moved although there is no room
	add(t, s, "a", "b")
	var got []string
	if more := testenv.Must(s.Drain(func(text []byte) ([]byte, error) {
		if string(text) == "a" {
			return text, nil
		}
		got = append(got, string(text))
		return nil, nil
	}))(t); more {
		t.Error("a line that was kept is to be drained at once")
	}
	if got = append(got, drainAll(t, s)...); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("%q", got)
	}
	shut(t, s)
}

func TestConcurrentAppendsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
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
	shut(t, s)
}

func TestFullDirectoryTakesLinesAfterADrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 { // also after a restart
		s := openSpool(t, dir, 22)
		if len(files(t, dir)) == 0 {
			add(t, s, "0123456789", "0123456789")
		}
		if err := s.Append(t.Context(), []byte("x")); !errors.Is(err, ErrFull) {
			t.Fatalf("error %v, want ErrFull", err)
		}
		shut(t, s)
	}
	s := openSpool(t, dir, 22)
	if got := drainAll(t, s); len(got) != 2 {
		t.Fatalf("%q, want 2 lines", got)
	}
	add(t, s, "x")
	shut(t, s)
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
	testenv.Must(0, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 100<<10 + 100, Max: was.Max}))(t)
	kept := 0
	var err error
	for kept < 1000 {
		if err = s.Append(t.Context(), []byte(strings.Repeat("x", 8<<10))); err != nil {
			break
		}
		kept++
	}
	testenv.Must(0, unix.Setrlimit(unix.RLIMIT_FSIZE, &was))(t)
	if !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("error %v after %d appends, want the disk's", err, kept)
	}
	add(t, s, "after")
	shut(t, s)
	s = openSpool(t, dir, 1<<30)
	if got := drainAll(t, s); len(got) != kept+2 || got[0] != "before" || got[len(got)-1] != "after" {
		t.Errorf("%d lines, want the %d that were kept", len(got), kept+2)
	}
	shut(t, s)
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

func TestFilesOfDeadProcessesAreDrainedFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := openSpool(t, dir, 1<<20), openSpool(t, dir, 1<<20)
	add(t, first, "first's")
	add(t, second, "second's")
	printed := killAppender(t, dir, 50)
	got := drain(t, second)
	if len(got) < printed {
		t.Fatalf("%d lines of the dead process, want the %d that were appended", len(got), printed)
	}
	for n, line := range got {
		if line != fmt.Sprint(n) {
			t.Fatalf("line %d is %q", n, line)
		}
	}
	if got := drainAll(t, second); !slices.Equal(got, []string{"second's"}) {
		t.Errorf("the second process has %q", got)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("files %q, want that of the first process", got)
	}
	if got := drainAll(t, first); !slices.Equal(got, []string{"first's"}) {
		t.Errorf("the first process has %q", got)
	}
	shut(t, first)
	shut(t, second)
}

// TestFileThatIsDrainedIsNotDrainedTwice has two processes with a file of a dead one.
func TestFileThatIsDrainedIsNotDrainedTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := openSpool(t, dir, 1<<20)
	add(t, dead, "a", "b")
	shut(t, dead)
	first, second := openSpool(t, dir, 1<<20), openSpool(t, dir, 1<<20)
	_, err := first.Drain(func(text []byte) ([]byte, error) {
		if got := drainAll(t, second); len(got) != 0 {
			t.Errorf("%q is drained twice", got)
		}
		if string(text) == "b" {
			return nil, errors.New("down")
		}
		return nil, nil
	})
	if err == nil {
		t.Error("no error")
	}
	shut(t, first)
	if got := drainAll(t, second); !slices.Equal(got, []string{"a", "b"}) { // from the beginning
		t.Errorf("%q", got)
	}
	shut(t, second)
}

func TestLineThatWasCutOffIsIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"1": "a\nb\nhalf of", "2": "", "3": "half of"} {
		testenv.Must(0, os.WriteFile(filepath.Join(dir, name+suffix), []byte(text), 0o600))(t)
	}
	s := openSpool(t, dir, 1<<20)
	if got := drain(t, s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	if got := drain(t, s); len(got) != 0 || len(files(t, dir)) != 0 {
		t.Errorf("%q, files %q", got, files(t, dir))
	}
	shut(t, s)
}

func TestFileThatCannotBeOpenedBlocksNoOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testenv.Must(0, os.Mkdir(filepath.Join(dir, "0"+suffix), 0o700))(t)
	s := openSpool(t, dir, 1<<20)
	add(t, s, "a")
	if got := drain(t, s); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
	if more, err := s.Drain(func([]byte) ([]byte, error) { return nil, nil }); more || !errors.Is(err, syscall.EISDIR) {
		t.Errorf("%v, %v", more, err)
	}
	shut(t, s)
}

// TestHangingDiskKeepsNobody blocks the writer.
func TestHangingDiskKeepsNobody(t *testing.T) {
	t.Parallel()
	s := openSpool(t, t.TempDir(), 1<<20)
	s.mu.Lock()
	first := make(chan error, 1)
	go func() { first <- s.Append(t.Context(), []byte("first")) }()
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
	s.mu.Unlock()
	testenv.Must(0, <-first)(t)
	if got := drainAll(t, s); !slices.Contains(got, "first") { // those that were given up may be kept
		t.Errorf("%q", got)
	}
	shut(t, s)
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
