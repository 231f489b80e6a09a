<?php
// A consumer that was written for rabbitmq-cli-consumer, unchanged: the message is its last argument, in base64.
//
//   steadyworker exec --queue mails --time-limit 60 --exit-codes rabbitmq-cli-consumer -- php mail.php {payload.base64}

const ACKNOWLEDGE = 0, REJECT = 3, REJECT_AND_REQUEUE = 4;

$message = json_decode(base64_decode($argv[$argc - 1]), true);
if (!isset($message['to'], $message['text'])) {
    fwrite(STDERR, "a mail without an address or a text\n");
    exit(REJECT);
}
exit(mail($message['to'], 'Your export is ready', $message['text']) ? ACKNOWLEDGE : REJECT_AND_REQUEUE);
