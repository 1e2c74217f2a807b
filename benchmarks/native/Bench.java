// What Java's virtual threads do with the loads of `echo` and `blocked_tasks`:
// `Bench echo`, `Bench burst COUNT MILLISECONDS`.

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executors;

public class Bench {
    /** kB of this process, from /proc; 0 where there is none. */
    static int memory(String name) throws IOException {
        Path status = Path.of("/proc/self/status");
        if (!Files.exists(status)) {
            return 0;
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith(name + ":")) {
                return Integer.parseInt(line.replaceAll("[^0-9]", ""));
            }
        }
        return 0;
    }

    static void burst(int count, Duration wait) throws IOException {
        int before = memory("VmRSS");
        long start = System.nanoTime();
        try (var executor = Executors.newVirtualThreadPerTaskExecutor()) {
            for (int number = 0; number < count; number++) {
                executor.submit(() -> {
                    Thread.sleep(wait);
                    return null;
                });
            }
        }
        double taken = (System.nanoTime() - start) / 1e6;
        System.out.printf(java.util.Locale.ROOT, "{\"ms\": %f, \"kB\": %d}%n", taken, Math.max(0, memory("VmHWM") - before));
    }

    static void serve(Socket connection) throws IOException {
        try (connection) {
            connection.setTcpNoDelay(true);
            byte[] buffer = new byte[65536];
            var input = connection.getInputStream();
            var output = connection.getOutputStream();
            for (int count; (count = input.read(buffer)) >= 0; ) {
                output.write(buffer, 0, count);
            }
        }
    }

    static void echo() throws IOException {
        var listener = new ServerSocket(0, 128, InetAddress.getLoopbackAddress());
        Thread.ofPlatform().daemon().start(() -> {
            try {
                while (System.in.read() >= 0) {
                    // until the parent ends
                }
            } catch (IOException ended) {
                // the parent has ended
            }
            Runtime.getRuntime().halt(0);
        });
        System.out.println(listener.getLocalPort());
        try (var executor = Executors.newVirtualThreadPerTaskExecutor()) {
            while (true) {
                var connection = listener.accept();
                executor.submit(() -> {
                    serve(connection);
                    return null;
                });
            }
        }
    }

    public static void main(String[] args) throws IOException {
        if (args[0].equals("echo")) {
            echo();
        } else {
            burst(Integer.parseInt(args[1]), Duration.ofNanos((long) (Double.parseDouble(args[2]) * 1e6)));
        }
    }
}
